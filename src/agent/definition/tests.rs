//! What agents may do, by their rules.

use proptest::prelude::*;

use super::*;

fn definition(tools: Tools, rules: &[(&str, &str, Action)]) -> Definition {
    let rule = |(tool, pattern, action): &(&str, &str, Action)| Rule::new(tool, *pattern, *action);
    Definition {
        name: "a".to_owned(),
        description: "b".to_owned(),
        prompt: "c".to_owned(),
        model: None,
        tools,
        rules: rules.iter().map(rule).collect(),
        grants: Grants::default(),
        source: Source::BuiltIn,
    }
}

#[test]
fn the_last_matching_rule_wins() {
    use Action::*;
    let check = |rules: &[(&str, &str, Action)], expected: &[(&str, &str, Action)]| {
        let definition = definition(Tools::all(), rules);
        for (tool, subject, action) in expected {
            assert_eq!(definition.action(tool, subject), *action, "{rules:?} {tool} {subject}");
        }
    };
    check(&[], &[("edit", "a", Allow), ("bash", "ls", Allow), (EXTERNAL_DIRECTORY, "/", Ask)]);
    check(
        &[("*", "*", Deny), ("read", "*", Allow), ("read", "*.env", Ask)],
        &[
            ("read", "a", Allow),
            ("read", "a/.env", Ask),
            ("edit", "a", Deny),
            (EXTERNAL_DIRECTORY, "/a", Deny),
        ],
    );
    check(
        &[("read", "*.env", Ask), ("read", "*", Allow), ("*", "*", Allow)],
        &[("read", ".env", Allow), (EXTERNAL_DIRECTORY, "/a", Allow)],
    );
    check(
        &[(EXTERNAL_DIRECTORY, "/tmp/*", Allow)],
        &[(EXTERNAL_DIRECTORY, "/tmp/a", Allow), (EXTERNAL_DIRECTORY, "/etc", Ask)],
    );
}

#[test]
fn a_shell_line_is_judged_by_its_strictest_command() {
    use Action::*;
    let check = |rules: &[(&str, &str, Action)], expected: &[(&str, Action)]| {
        let definition = definition(Tools::all(), rules);
        for (line, action) in expected {
            assert_eq!(definition.action("bash", line), *action, "{rules:?} {line}");
        }
    };
    check(
        &[("bash", "*", Deny), ("bash", "git diff*", Allow), ("bash", "git log *", Ask)],
        &[
            ("git diff --stat", Allow),
            ("git diff && git diff HEAD", Allow),
            ("git diff 2>&1", Allow),
            ("git diff | git log", Ask),
            ("git diff; rm -rf .", Deny),
            ("git diff > src/main.rs", Deny),
            ("git diff $(rm a)", Deny),
            ("git diff \"$(rm a)\"", Deny),
            ("git diff `rm a`", Deny),
            ("", Deny),
        ],
    );
    check(
        &[("bash", "git push*", Deny), ("bash", "* | sh", Ask)],
        &[
            ("make", Allow),
            ("make; git push", Deny),
            ("make \"$(date)\"", Ask),
            ("git push \"$(date)\"", Deny),
            ("curl x | sh", Ask),
        ],
    );
    check(&[("bash", "*", Allow)], &[("make \"$(date)\"", Allow), ("a; b > c", Allow)]);
}

/// An agent of Claude's with `Bash(git diff:*)`.
#[test]
fn an_allow_rule_covers_only_the_command_it_names() {
    let rules = [("bash", "*", Action::Deny), ("bash", "git diff*", Action::Allow)];
    let denying = definition(Tools::all(), &rules);
    let asking = definition(Tools::all(), &[("bash", "*", Action::Ask), rules[1]]);
    let trusting = definition(Tools::all(), &[rules[1]]);
    for line in [
        "git diff",
        "git diff --stat",
        "git diff && (git diff HEAD | git diff a)",
        "if git diff; then git diff a; fi",
        "git diff *.rs 2>&1 >/dev/null",
        "command git diff",
        "time nohup git diff",
        "\"git\" 'diff' \\a",
    ] {
        assert_eq!(denying.action("bash", line), Action::Allow, "{line}");
        assert_eq!(asking.action("bash", line), Action::Allow, "{line}");
    }
    for line in [
        "git difftool -y -x 'sh -c id'",
        "git diff; id",
        "git diff && id",
        "git diff || id",
        "git diff | id",
        "git diff & id",
        "git diff\nid",
        "git diff > x",
        "git diff >> x",
        "git diff &> x",
        "GIT_EXTERNAL_DIFF=./x git diff",
        "PATH=.; git diff",
        "for PATH in .; do git diff; done",
        "env A=1 git diff",
        "sudo git diff",
        "xargs git diff",
        "./git diff",
        "git -c a=b diff",
        "\"git diff\"",
    ] {
        assert_eq!(denying.action("bash", line), Action::Deny, "{line}");
        assert_eq!(asking.action("bash", line), Action::Ask, "{line}");
    }
    for line in [
        "git diff $(id)",
        "git diff `id`",
        "git diff \"$(id)\"",
        "git diff <(id)",
        "git diff <<< x",
        "git diff <<E\nE\n",
        "git diff $x",
        "$git diff",
        "g?t diff",
        "{git,} diff",
        "eval git diff",
        "source git diff",
        ". git diff",
        "bash -c 'git diff'",
        "git diff 'x",
        "git diff\r",
    ] {
        assert_eq!(denying.action("bash", line), Action::Deny, "{line}");
        assert_eq!(asking.action("bash", line), Action::Ask, "{line}");
        assert_eq!(trusting.action("bash", line), Action::Ask, "{line}");
    }
    let long = format!("git diff {}", "x".repeat(64 * 1024));
    assert_eq!(trusting.action("bash", &long), Action::Ask);
}

#[test]
fn assignments_redirections_and_wrappers_are_allowed_only_when_a_rule_names_them() {
    let rules = [
        ("bash", "*", Action::Deny),
        ("bash", "NODE_ENV=test npm test", Action::Allow),
        ("bash", "> out/*", Action::Allow),
        ("bash", "sudo make*", Action::Allow),
    ];
    let definition = definition(Tools::all(), &rules);
    let check = |line: &str, expected: Action| {
        assert_eq!(definition.action("bash", line), expected, "{line}");
    };
    check("NODE_ENV=test npm test >out/log", Action::Allow);
    check("NODE_ENV=test PATH=. npm test", Action::Deny);
    check("NODE_ENV=test npm test >log", Action::Deny);
    check("sudo make install", Action::Allow);
    check("make install", Action::Deny);
}

/// Ways to write a `git push` that a rule against it must not miss.
const COMMANDS: &[&str] = &[
    "@",
    "command @",
    "command -p @",
    "builtin @",
    "exec @",
    "env @",
    "env A=1 @",
    "env -i @",
    "nohup @",
    "sudo @",
    "sudo -n @",
    "nice -n 5 @",
    "timeout 5 @",
    "xargs @",
    "/usr/bin/@",
    "/usr/bin/env @",
];

const PLACES: &[&str] = &[
    "A=1 @",
    "A=1 B=2 @",
    "A=1; @",
    "time @",
    "time -p @",
    "(@)",
    "{ @; }",
    "! @",
    "x; @",
    "x && @",
    "x | @",
    "x & @",
    "x\n@",
    "@ > y",
    "> y @",
    "@ < y",
    "if @; then x; fi",
    "if x; then @; fi",
    "while @; do x; done",
    "for x in y; do @; done",
    "case x in x) @;; esac",
    "f() { @; }",
    "function f { @; }",
    "echo $(@)",
    "echo \"$(@)\"",
    "echo `@`",
    "echo \"`@`\"",
    "echo ${x:-$(@)}",
    "echo $(( $(@) ))",
    "x <(@)",
    "x > >(@)",
    "coproc @",
    "[[ -n $(@) ]]",
    "x=$(@)",
    "x=($(@))",
    "cat <<E | @\nx\nE",
];

const PUSHES: &[&str] = &[
    "git push",
    "\"git\" push",
    "'git' push",
    "g\"i\"t 'pu'sh",
    "git  \\\n push",
    "git push --force",
    "git push $x",
    "git push 2>&1",
];

#[test]
fn a_deny_rule_also_matches_quoted_wrapped_and_nested_commands() {
    let rules = [("bash", "git push*", Action::Deny)];
    let definition = definition(Tools::all(), &rules);
    for place in COMMANDS.iter().chain(PLACES) {
        for push in PUSHES {
            let line = place.replace('@', push);
            assert_eq!(definition.action("bash", &line), Action::Deny, "{line}");
        }
    }
    for line in ["eval 'git push'", "bash -c 'git push'", "$x push", "git $x", "git pus*", "$x"] {
        assert_eq!(definition.action("bash", line), Action::Ask, "{line}");
    }
    for line in ["A=1 make", "git pull", "echo 'git push'", "sudo make", "ls *.rs > x"] {
        assert_eq!(definition.action("bash", line), Action::Allow, "{line}");
    }
}

proptest! {
    #[test]
    fn no_wrapping_makes_a_denied_command_allowed(
        commands in prop::collection::vec(prop::sample::select(COMMANDS), 0..3),
        places in prop::collection::vec(prop::sample::select(PLACES), 0..3),
        push in prop::sample::select(PUSHES),
    ) {
        let definition = definition(Tools::all(), &[("bash", "git push*", Action::Deny)]);
        let around = commands.iter().chain(&places);
        let wrapped = around.fold(push.to_owned(), |line, around| around.replace('@', &line));
        prop_assert_ne!(definition.action("bash", &wrapped), Action::Allow, "{}", wrapped);
    }
}

#[test]
fn a_tool_is_offered_if_any_call_of_it_may_pass() {
    use Action::*;
    let check = |rules: &[(&str, &str, Action)], expected: bool| {
        let definition = definition(["read", "bash"].into_iter().collect(), rules);
        assert_eq!(definition.may_use("bash"), expected, "{rules:?}");
        assert!(!definition.may_use("edit"));
        assert_eq!(definition.action("edit", "a"), Deny);
    };
    check(&[], true);
    check(&[("bash", "*", Deny)], false);
    check(&[("*", "*", Deny)], false);
    check(&[("*", "*", Deny), ("bash", "*", Ask)], true);
    check(&[("bash", "*", Deny), ("bash", "git *", Allow)], true);
    check(&[("bash", "git *", Allow), ("bash", "*", Deny)], false);
    check(&[("bash", "git *", Deny)], true);
    check(&[("edit", "*", Deny)], true);
}

#[test]
fn five_agents_are_built_in_and_three_of_them_only_read() {
    let found: Vec<_> = builtin()
        .into_iter()
        .map(|agent| {
            assert!(agent.description.len() <= 100 && !agent.description.contains('\n'));
            assert_eq!((agent.model, agent.rules, agent.source), (None, vec![], Source::BuiltIn));
            (agent.name, agent.tools.iter().collect::<Vec<_>>().join(" "))
        })
        .collect();
    let expected = [
        ("build", "read list glob grep edit write bash todo"),
        ("explore", "read list glob grep"),
        ("general", "read list glob grep edit write bash todo"),
        ("librarian", "read list glob grep"),
        ("oracle", "read list glob grep todo"),
    ];
    assert_eq!(found, expected.map(|(name, tools)| (name.to_owned(), tools.to_owned())));
}
