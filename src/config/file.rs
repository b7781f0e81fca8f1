//! The template of the config file, generated from the declared keys: every key with its documentation and its default,
//! commented out, so that as it stands it changes nothing. A snapshot test shows every change of it in review.

use super::Config;
use super::section::{Key, Rule};

const HEAD: &str = "\
# The settings of asyncagents, all of them, with their defaults.
#
# To change one, take the comment sign off its line and put your value in. What is set here is
# overruled by the environment (ASYNCAGENTS_…), and that by flags on the command line.
# `asyncagents config show` prints the settings in force.
#
# A running daemon notices when this file is changed. [limits], task_tool.active_per_parent and
# log.level take effect at once; the rest needs `asyncagents daemon restart`, and commands say so.
";

pub fn default_file() -> String {
    let mut file = HEAD.to_owned();
    for key in Config::keys() {
        file.push('\n');
        write_key(&mut file, "", &key);
        let Rule::Keys(keys) = (key.rule)() else { continue };
        for (n, inner) in keys.iter().enumerate() {
            // Keys without documentation belong to the key before them, and stand right below it.
            if n > 0 && !inner.doc.is_empty() {
                file.push('\n');
            }
            write_key(&mut file, &format!("{}.", key.name), inner);
        }
    }
    file
}

fn write_key(file: &mut String, path: &str, key: &Key) {
    for line in key.doc {
        *file += &format!("#{line}\n");
    }
    let default = (key.default)();
    *file += &match default.is_table() {
        true => format!("[{path}{}]\n", key.name),
        false => format!("# {} = {default}\n", key.name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commented_file_explains_every_key() {
        insta::assert_snapshot!(default_file());
    }
}
