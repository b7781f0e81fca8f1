//! The commands a shell line is made of, so that `git log; rm -rf .` is not taken for a `git log`.
//! It understands enough of a shell to know what it does not understand, and says so.

/// Words that come before a command, or close what they opened.
const OPENING: [&str; 10] =
    ["{", "!", "if", "then", "elif", "else", "while", "until", "do", "time"];
const CLOSING: [&str; 4] = ["}", "fi", "done", "esac"];

/// Redirections that write nothing.
const HARMLESS: [&str; 7] =
    [">/dev/null", "> /dev/null", ">>/dev/null", ">> /dev/null", ">&1", ">&2", ">&-"];

/// `None` when only a shell could tell: backquotes, here-documents, arithmetic, substitutions within
/// quotes, quotes without an end. A redirection into a file counts as a command that begins with `>`.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    let mut commands = Commands::default();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' => {
                if commands.current.ends_with('$') {
                    return None;
                }
                let length = rest[1..].find('\'')? + 2;
                commands.push(&rest[..length]);
                length
            }
            '"' => {
                let length = quoted_length(rest)?;
                commands.push(&rest[..length]);
                length
            }
            '`' => return None,
            '\\' => {
                let escaped = rest[1..].chars().next()?;
                let length = 1 + escaped.len_utf8();
                if escaped != '\n' {
                    commands.push(&rest[..length]);
                }
                length
            }
            '$' if rest.starts_with("${") => {
                let length = variable_length(rest)?;
                commands.push(&rest[..length]);
                length
            }
            '$' if rest.starts_with("$(") => 1,
            '<' if rest.starts_with("<<") => return None,
            '(' if rest.starts_with("((") => return None,
            '#' if commands.at_word_start => rest.find('\n').unwrap_or(rest.len()),
            '&' if rest.starts_with("&>") => 1,
            ';' | '&' | '|' | '(' | ')' | '\n' => {
                commands.end();
                1
            }
            '>' => commands.redirect(rest),
            ' ' | '\t' => {
                commands.space();
                1
            }
            other => {
                commands.push(&rest[..other.len_utf8()]);
                other.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    commands.end();
    Some(commands.ended)
}

struct Commands {
    ended: Vec<String>,
    current: String,
    at_word_start: bool,
}

impl Default for Commands {
    fn default() -> Commands {
        Commands { ended: Vec::new(), current: String::new(), at_word_start: true }
    }
}

impl Commands {
    fn push(&mut self, text: &str) {
        self.current.push_str(text);
        self.at_word_start = false;
    }

    fn space(&mut self) {
        if !self.current.ends_with(' ') {
            self.current.push(' ');
        }
        self.at_word_start = true;
    }

    fn end(&mut self) {
        let current = std::mem::take(&mut self.current);
        let mut command = current.trim();
        while let Some((first, rest)) = command.split_once(' ')
            && OPENING.contains(&first)
        {
            command = rest.trim_start();
        }
        if !command.is_empty() && !OPENING.contains(&command) && !CLOSING.contains(&command) {
            self.ended.push(command.to_owned());
        }
        self.at_word_start = true;
    }

    /// How much of `rest`, which begins with `>`, is read by this.
    fn redirect(&mut self, rest: &str) -> usize {
        // The `2` of `2>` is no argument.
        let before = self.current.trim_end_matches(|c: char| c.is_ascii_digit());
        if before.is_empty() || before.ends_with(' ') {
            self.current.truncate(before.len());
        }
        let ends_there = |after: &str| {
            after.is_empty() || after.starts_with([' ', '\t', '\n', ';', '&', '|', ')'])
        };
        let harmless =
            HARMLESS.iter().find(|target| rest.strip_prefix(**target).is_some_and(ends_there));
        if let Some(target) = harmless {
            return target.len();
        }
        let length = rest.len() - rest.trim_start_matches(['>', '&', '|']).len();
        self.end();
        self.push(">");
        length
    }
}

/// Of a text in double quotes, quotes included; `None` if more than a plain variable is put in.
fn quoted_length(rest: &str) -> Option<usize> {
    let mut length = 1;
    loop {
        let ahead = &rest[length..];
        length += match ahead.chars().next()? {
            '"' => return Some(length + 1),
            '\\' => 1 + ahead[1..].chars().next()?.len_utf8(),
            '`' => return None,
            '$' if ahead.starts_with("$(") => return None,
            '$' if ahead.starts_with("${") => variable_length(ahead)?,
            other => other.len_utf8(),
        };
    }
}

/// Of `${NAME}`. Anything more may hold quotes and commands of its own.
fn variable_length(rest: &str) -> Option<usize> {
    let end = rest.find('}')?;
    let is_name = rest[2..end].chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_its_commands() {
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        };
        check("git log", &["git log"]);
        check("  git   log\t-p ", &["git log -p"]);
        check("a; b && c || d | e & f\ng", &["a", "b", "c", "d", "e", "f", "g"]);
        check("grep 'a;b|c' \"d && e\" f\\;g", &["grep 'a;b|c' \"d && e\" f\\;g"]);
        check("grep \"a\\\"; rm\" b", &["grep \"a\\\"; rm\" b"]);
        check("echo \"$x ${y}\" $z", &["echo \"$x ${y}\" $z"]);
        check("git diff $(rm -rf .)", &["git diff", "rm -rf ."]);
        check("(cd a; make)", &["cd a", "make"]);
        check("diff <(rm a) b", &["diff <", "rm a", "b"]);
        check("if true; then rm a; fi", &["true", "rm a"]);
        check("{ rm a; }", &["rm a"]);
        check("make 2>&1 >/dev/null | tail", &["make", "tail"]);
        check("make &> /dev/null", &["make"]);
        check("make > out.txt", &["make", "> out.txt"]);
        check("make >>out 2>err", &["make", ">out", ">err"]);
        check("make &>out", &["make", ">out"]);
        check("make >/dev/nullx", &["make", ">/dev/nullx"]);
        check("make a2>b", &["make a2", ">b"]);
        check("ls # it's\nrm a", &["ls", "rm a"]);
        check("ls a#b", &["ls a#b"]);
        check("ls \\\n -l; r\\\nm a", &["ls -l", "rm a"]);
        check(" ; ", &[]);
    }

    #[test]
    fn what_only_a_shell_can_tell_is_not_guessed() {
        for line in [
            "echo `rm a`",
            "echo \"`rm a`\"",
            "echo \"$(rm a)\"",
            "echo \"${x:-\"'\"}\"; rm a; '",
            "echo ${x:-'}'}",
            "cat <<END\n'\nEND\nrm a\n'",
            "echo $'\\''; rm a; echo ''",
            "echo $((1 # )); rm a",
            "echo 'a",
            "echo \"a",
            "echo a\\",
        ] {
            assert_eq!(split(line), None, "{line}");
        }
    }
}
