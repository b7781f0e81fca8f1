//! Lists of well-known paths: which parts of a home directory are tools, which are caches and which are
//! secrets. The home is an allow list (what is not listed is not mounted), so the list of secrets only
//! matters where a workspace, a granted path or a tool's directory contains one.

use std::path::{Path, PathBuf};

/// What the environment says about the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserPlaces {
    pub home: Option<PathBuf>,
    /// Homes of toolchains that a variable names (`CARGO_HOME`).
    pub toolchains: Vec<PathBuf>,
    /// The directories of `PATH`.
    pub path: Vec<PathBuf>,
}

/// Where homes of all users are; replaced by empty directories.
pub(super) const HOMES: [&str; 2] = ["/home", "/root"];

/// Replaced by empty directories: sockets of services (Docker, D-Bus, SSH agents) and shared files.
pub(super) const BLANK: [&str; 2] = ["/run", "/var/tmp"];

/// The parts of `/run` that programs need: name resolution (`/etc/resolv.conf` is often a symlink to it)
/// and the system profile of NixOS.
pub(super) const NEEDED_IN_RUN: [&str; 5] = [
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
    "/run/opengl-driver",
];

/// Readable by root only, and the daemon may run as root.
pub(super) const SYSTEM_SECRETS: [&str; 8] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/security/opasswd",
];

/// Where the private keys of the SSH server are, as `*_key`.
pub(super) const HOST_KEYS: &str = "/etc/ssh";

/// In a home: programs and their settings. Readable.
pub(super) const TOOLS: [&str; 44] = [
    ".gitconfig",
    ".config/git",
    ".gitignore",
    ".gitignore_global",
    ".cargo",
    ".rustup",
    ".nvm",
    ".fnm",
    ".volta",
    ".bun",
    ".deno",
    ".pyenv",
    ".rbenv",
    ".rvm",
    ".gem",
    ".bundle",
    ".asdf",
    ".sdkman",
    ".jenv",
    ".m2",
    ".gradle",
    ".opam",
    ".ghcup",
    ".cabal",
    ".stack",
    ".elan",
    ".juliaup",
    ".nix-profile",
    ".nix-defexpr",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".local/share/rtx",
    ".local/share/fnm",
    ".local/share/uv",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/virtualenvs",
    ".local/state/nix",
    "miniconda3",
    "anaconda3",
    "miniforge3",
    "mambaforge",
    "go",
];

/// In a home: the download caches of package managers. Managers that work without theirs (npm, pip) get
/// an empty one in the private home unless caches are writable.
pub(super) const CACHES: [&str; 12] = [
    ".cargo/registry",
    ".cargo/git",
    "go/pkg/mod",
    ".cache/go-build",
    ".m2/repository",
    ".gradle/caches",
    ".npm",
    ".cache/pip",
    ".cache/uv",
    ".cache/yarn",
    ".cache/pnpm",
    ".local/share/pnpm/store",
];

/// The first this many of [`CACHES`] are also useful read-only.
pub(super) const READ_CACHES: usize = 6;

/// In a home: never shown.
pub(super) const SECRETS: [&str; 57] = [
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/hub",
    ".config/glab-cli",
    ".config/gcloud",
    ".config/op",
    ".config/pip",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".mozilla",
    ".thunderbird",
    "snap",
    ".var",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/opencode",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".bundle/config",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".terraform.d",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".qwen",
    ".cursor",
    ".config/opencode",
    ".vault-token",
    ".boto",
    ".s3cfg",
    ".pgpass",
    ".my.cnf",
    ".huggingface",
    ".cache/huggingface/token",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
];

/// Files found beside the `bin` of a toolchain, and seldom beside another `bin`.
pub(super) const BESIDE_PROGRAMS: [&str; 3] = ["pyvenv.cfg", "lib", "include"];

/// What to show for a directory of `PATH` inside a home: for the `bin` of a toolchain its parent, because
/// programs need the libraries beside them; else the directory itself. `~/work/bin` must not open `~/work`.
pub(super) fn around_programs(
    home: &Path,
    directory: &Path,
    exists: impl Fn(&Path) -> bool,
) -> PathBuf {
    let above = directory.parent().unwrap_or(directory);
    let is_bin = directory.file_name().is_some_and(|name| name == "bin" || name == "shims");
    let is_broad =
        home.starts_with(above) || above.ends_with(".local") || above.ends_with(".config");
    let is_toolchain = TOOLS.iter().any(|tool| above.starts_with(home.join(tool)))
        || BESIDE_PROGRAMS.iter().any(|name| exists(&above.join(name)));
    if is_bin && !is_broad && is_toolchain { above.to_owned() } else { directory.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_around_a_program_is_visible_if_it_is_a_toolchain() {
        let there = ["/home/ada/venv/pyvenv.cfg", "/home/ada/opt/lib", "/home/ada/lib"];
        let exists = |path: &Path| there.iter().any(|known| Path::new(known) == path);
        let check = |directory: &str, expected: &str| {
            let found = around_programs(Path::new("/home/ada"), Path::new(directory), exists);
            assert_eq!(found, Path::new(expected));
        };
        check("/home/ada/.nvm/versions/v20/bin", "/home/ada/.nvm/versions/v20");
        check("/home/ada/venv/bin", "/home/ada/venv");
        check("/home/ada/opt/bin", "/home/ada/opt");
        check("/home/ada/work/bin", "/home/ada/work/bin");
        check("/home/ada/bin", "/home/ada/bin");
        check("/home/ada/.local/bin", "/home/ada/.local/bin");
        check("/home/bin", "/home/bin");
        check("/home/ada/tools", "/home/ada/tools");
    }
}
