//! The guarantees of each sandbox level, as a table: `doctor` and the documentation print it, and the
//! escape tests assert every cell of it, also that what is not guaranteed is really possible.

use super::Level;

/// Something a command must not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    Credentials,
    OwnFiles,
    Temporary,
    Outside,
    Git,
    Agents,
    Environment,
    View,
    Signals,
    Capabilities,
    Namespaces,
    Socket,
    Services,
    Api,
    Tcp,
    Udp,
    Processes,
    Memory,
    FileSize,
    Disk,
    Outlive,
}

/// Whether a level keeps a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    Yes,
    /// From this ABI version of Landlock on, which came with this version of Linux.
    Since {
        abi: i32,
        linux: &'static str,
    },
    /// Not kept, and why not.
    No(&'static str),
}

/// One property at all levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub property: Property,
    /// What a command cannot do, after "a command cannot".
    pub words: &'static str,
    pub bwrap_user: Guarantee,
    pub bwrap_root: Guarantee,
    pub landlock: Guarantee,
    pub off: Guarantee,
}

const YES: Guarantee = Guarantee::Yes;
const NO_SANDBOX: Guarantee = Guarantee::No("there is no sandbox");
const MANY_FILES: Guarantee = Guarantee::No("each file is limited, their number is not");
const LINUX_6_12: Guarantee = Guarantee::Since { abi: 6, linux: "6.12" };

/// A property that bubblewrap and Landlock both keep.
const fn row(property: Property, words: &'static str) -> Row {
    Row { property, words, bwrap_user: YES, bwrap_root: YES, landlock: YES, off: NO_SANDBOX }
}

pub const GUARANTEES: [Row; 21] = [
    row(Property::Credentials, "read credentials in the home directory (`~/.ssh`, `~/.aws`, …)"),
    row(Property::OwnFiles, "read our storage directory: token, tasks, conversations"),
    row(Property::Temporary, "read what others have in `/tmp`"),
    Row {
        landlock: Guarantee::No(
            "Landlock does not cover attributes (`chmod`, `touch`), and `/dev/shm` is open",
        ),
        ..row(Property::Outside, "write outside the workspace and its own `/tmp`")
    },
    Row {
        landlock: Guarantee::No("Landlock cannot except a part of a directory"),
        ..row(Property::Git, "write `.git/hooks` and `.git/config`")
    },
    Row {
        landlock: Guarantee::No("Landlock cannot except a part of a directory"),
        ..row(
            Property::Agents,
            "write definitions and settings of agents in the workspace (`.claude`, `.mcp.json`, …)",
        )
    },
    row(Property::Environment, "read the environment or memory of other processes"),
    Row {
        landlock: Guarantee::No("Landlock does not hide processes"),
        ..row(Property::View, "see other processes")
    },
    Row { landlock: LINUX_6_12, ..row(Property::Signals, "signal other processes") },
    row(Property::Capabilities, "use capabilities of root, such as mounting"),
    row(Property::Namespaces, "get out through namespaces of its own"),
    Row {
        landlock: Guarantee::No(
            "Landlock does not cover Unix sockets; the daemon refuses what is asked",
        ),
        ..row(Property::Socket, "connect to the daemon's socket")
    },
    Row {
        landlock: Guarantee::No("Landlock does not cover Unix sockets"),
        ..row(
            Property::Services,
            "reach services over Unix sockets in `/run` and `/tmp` (Docker, D-Bus, SSH agents)",
        )
    },
    Row {
        landlock: LINUX_6_12,
        off: Guarantee::No(
            "one that kills its guard and empties its environment is not recognised as an agent's command",
        ),
        ..row(
            Property::Api,
            "answer requests, launch tasks or read other tasks, over the socket, the port or the CLI",
        )
    },
    Row {
        landlock: Guarantee::Since { abi: 4, linux: "6.7" },
        ..row(Property::Tcp, "use TCP, with the network off")
    },
    Row {
        landlock: Guarantee::No("Landlock covers TCP only"),
        ..row(Property::Udp, "use UDP, with the network off")
    },
    Row {
        // There the guard counts them, which works only as long as commands cannot signal (kill) it.
        landlock: LINUX_6_12,
        ..row(Property::Processes, "keep more processes than the limit")
    },
    row(Property::Memory, "have more memory than the limit, in one process"),
    row(Property::FileSize, "write a file larger than the limit"),
    Row {
        property: Property::Disk,
        words: "fill the disk",
        bwrap_user: MANY_FILES,
        bwrap_root: MANY_FILES,
        landlock: MANY_FILES,
        off: MANY_FILES,
    },
    Row {
        landlock: LINUX_6_12,
        off: Guarantee::No("one that kills its guard and empties its environment is not found"),
        ..row(Property::Outlive, "leave a process behind")
    },
];

impl Row {
    pub fn at(&self, level: Level) -> Guarantee {
        match level {
            Level::BwrapUser => self.bwrap_user,
            Level::BwrapRoot => self.bwrap_root,
            Level::Landlock => self.landlock,
            Level::Off => self.off,
        }
    }
}

impl Guarantee {
    /// Whether it holds on a system with this ABI version of Landlock; 0 is none.
    pub fn holds(self, landlock: i32) -> bool {
        match self {
            Guarantee::Yes => true,
            Guarantee::Since { abi, .. } => landlock >= abi,
            Guarantee::No(_) => false,
        }
    }
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::BwrapUser => "bubblewrap",
            Level::BwrapRoot => "bubblewrap, as root",
            Level::Landlock => "Landlock",
            Level::Off => "off",
        }
    }

    /// What this level does not guarantee, one line each.
    pub fn gaps(self, landlock: i32) -> Vec<String> {
        let gap = |row: &Row| match row.at(self) {
            held if held.holds(landlock) => None,
            Guarantee::Yes => None,
            Guarantee::Since { linux, .. } => {
                Some(format!("{} (only from Linux {linux} on)", row.words))
            }
            Guarantee::No(why) => Some(format!("{} ({why})", row.words)),
        };
        GUARANTEES.iter().filter_map(gap).collect()
    }
}

/// The table in Markdown, for the documentation.
pub fn table() -> String {
    let mut text =
        "| a command cannot | bubblewrap | as root | Landlock | off |\n|---|---|---|---|---|\n"
            .to_owned();
    let cell = |held: Guarantee| match held {
        Guarantee::Yes => "yes".to_owned(),
        Guarantee::Since { linux, .. } => format!("from Linux {linux} on"),
        Guarantee::No(why) => format!("**no**: {why}"),
    };
    for row in GUARANTEES {
        let held = [row.bwrap_user, row.bwrap_root, row.landlock, row.off].map(cell);
        text.push_str(&format!("| {} | {} |\n", row.words, held.join(" | ")));
    }
    text
}
