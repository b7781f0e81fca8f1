//! Collects the simple commands of a syntax tree, however deep they are nested: in compound commands,
//! functions, substitutions and tests. Every construct that evaluates text at run time makes the line
//! uncertain.

use brush_parser::ast::{
    AndOr, Assignment, AssignmentName, AssignmentValue, Command as Node,
    CommandPrefixOrSuffixItem as Item, CompoundCommand, CompoundList, ExtendedTestExpr,
    ForClauseCommand, IoFileRedirectKind, IoFileRedirectTarget, IoRedirect, Program, RedirectList,
    SimpleCommand, SubshellCommand, Word as Source,
};

use super::wrapper::{self, Inner};
use super::{Command, Form, Line, Word, parse_plainly, word};

/// Writing to this needs no permission.
const NOWHERE: &str = "/dev/null";

/// How many nested wrappers are stripped; each form is a copy of the command.
const MOST_WRAPPERS: usize = 8;

/// All commands of a program.
pub(super) fn commands(program: &Program) -> Line {
    let mut walk = Walk { line: Line::default() };
    program.complete_commands.iter().for_each(|list| walk.list(list));
    walk.line
}

struct Walk {
    line: Line,
}

/// A simple command while its parts are gathered.
#[derive(Default)]
struct Parts {
    assignments: Vec<Word>,
    words: Vec<Word>,
    /// Redirections of files that are read.
    read: Vec<Word>,
}

impl Walk {
    fn list(&mut self, list: &CompoundList) {
        for item in &list.0 {
            item.0.first.seq.iter().for_each(|node| self.node(node));
            for AndOr::And(pipeline) | AndOr::Or(pipeline) in &item.0.additional {
                pipeline.seq.iter().for_each(|node| self.node(node));
            }
        }
    }

    fn node(&mut self, node: &Node) {
        match node {
            Node::Simple(command) => self.simple(command),
            Node::Compound(compound, redirects) => {
                self.compound(compound);
                self.redirects(redirects.as_ref());
            }
            Node::Function(function) => {
                self.compound(&function.body.0);
                self.redirects(function.body.1.as_ref());
            }
            Node::ExtendedTest(test, redirects) => {
                // `[[ … ]]` evaluates array subscripts, which can run commands.
                self.line.is_uncertain = true;
                self.test(&test.expr);
                self.redirects(redirects.as_ref());
            }
        }
    }

    fn compound(&mut self, compound: &CompoundCommand) {
        match compound {
            CompoundCommand::Arithmetic(arithmetic) => self.text(&arithmetic.expr.value),
            CompoundCommand::ArithmeticForClause(clause) => {
                for part in [&clause.initializer, &clause.condition, &clause.updater] {
                    part.iter().for_each(|part| self.text(&part.value));
                }
                self.line.is_uncertain = true;
                self.list(&clause.body.list);
            }
            CompoundCommand::BraceGroup(group) => self.list(&group.list),
            CompoundCommand::Subshell(subshell) => self.list(&subshell.list),
            CompoundCommand::ForClause(clause) => self.for_clause(clause),
            CompoundCommand::CaseClause(clause) => {
                self.word(&clause.value);
                for case in &clause.cases {
                    case.patterns.iter().for_each(|pattern| drop(self.word(pattern)));
                    case.cmd.iter().for_each(|list| self.list(list));
                }
            }
            CompoundCommand::IfClause(clause) => {
                self.list(&clause.condition);
                self.list(&clause.then);
                for part in clause.elses.iter().flatten() {
                    part.condition.iter().for_each(|list| self.list(list));
                    self.list(&part.body);
                }
            }
            CompoundCommand::WhileClause(clause) | CompoundCommand::UntilClause(clause) => {
                self.list(&clause.0);
                self.list(&clause.1.list);
            }
            CompoundCommand::Coprocess(coprocess) => {
                self.line.is_uncertain = true;
                self.node(&coprocess.body);
            }
        }
    }

    /// A loop. It assigns a variable, which could be `PATH`, so rules see it as a command `for x in a b`.
    fn for_clause(&mut self, clause: &ForClauseCommand) {
        let mut words = ["for", clause.variable_name.as_str(), "in"].map(literal).to_vec();
        words.extend(clause.values.iter().flatten().map(|value| self.word(value)));
        self.line.commands.push(Command { forms: vec![Form { words, is_whole: true }] });
        self.list(&clause.body.list);
    }

    fn simple(&mut self, command: &SimpleCommand) {
        let mut parts = Parts::default();
        for item in command.prefix.iter().flat_map(|prefix| &prefix.0) {
            match item {
                Item::AssignmentWord(assignment, _) => {
                    let word = self.assignment(assignment);
                    parts.assignments.push(word);
                }
                other => self.item(other, &mut parts),
            }
        }
        if let Some(name) = &command.word_or_name {
            parts.words.push(self.word(name));
        }
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, &mut parts);
        }
        self.finish(parts);
    }

    fn item(&mut self, item: &Item, parts: &mut Parts) {
        match item {
            Item::IoRedirect(redirect) => parts.read.extend(self.redirect(redirect)),
            Item::Word(word) => parts.words.push(self.word(word)),
            // `export A=1`: after the name of the command it is an argument like any other.
            Item::AssignmentWord(assignment, _) => {
                let word = self.assignment(assignment);
                parts.words.push(word);
            }
            Item::ProcessSubstitution(_, subshell) => {
                let word = self.process(subshell);
                parts.words.push(word);
            }
        }
    }

    /// Adds the command in all forms that rules are matched against.
    fn finish(&mut self, Parts { assignments, words, read }: Parts) {
        let typed: Vec<Word> = assignments.iter().chain(&words).chain(&read).cloned().collect();
        if typed.is_empty() {
            return;
        }
        // The form as typed is whole: a rule that spells out the assignments may allow them.
        let mut forms = vec![Form { words: typed, is_whole: true }];
        let mut is_whole = assignments.is_empty() && read.is_empty();
        if !is_whole && !words.is_empty() {
            forms.push(Form { words: words.clone(), is_whole: false });
        }
        let mut words = words;
        for depth in 0.. {
            if let Some(words) = wrapper::without_path(&words) {
                forms.push(Form { words, is_whole: false });
            }
            match wrapper::unwrap(&words) {
                Inner::Same => break,
                Inner::Command { words: inner, changes_nothing } if depth < MOST_WRAPPERS => {
                    is_whole &= changes_nothing;
                    words = inner;
                    forms.push(Form { words: words.clone(), is_whole });
                }
                Inner::Uncertain | Inner::Command { .. } => {
                    self.line.is_uncertain = true;
                    break;
                }
            }
        }
        self.line.commands.push(Command { forms });
    }

    /// An assignment as a word, `A=1`.
    fn assignment(&mut self, assignment: &Assignment) -> Word {
        let name = match &assignment.name {
            AssignmentName::VariableName(name) => name.clone(),
            // A subscript is evaluated, which can run commands.
            AssignmentName::ArrayElementName(name, index) => {
                self.text(index);
                name.clone()
            }
        };
        let value = match &assignment.value {
            AssignmentValue::Scalar(value) => self.word(value),
            AssignmentValue::Array(elements) => {
                for (key, value) in elements {
                    key.iter().for_each(|key| self.text(&key.value));
                    self.word(value);
                }
                self.line.is_uncertain = true;
                Word::Unknown
            }
        };
        let sign = if assignment.append { "+=" } else { "=" };
        value.after(&format!("{name}{sign}"))
    }

    fn redirects(&mut self, redirects: Option<&RedirectList>) {
        for redirect in redirects.iter().flat_map(|list| &list.0) {
            self.redirect(redirect);
        }
    }

    /// Files that are written to become commands; what is read is returned as words.
    fn redirect(&mut self, redirect: &IoRedirect) -> Vec<Word> {
        match redirect {
            IoRedirect::File(_, kind, target) => return self.file(kind, target),
            IoRedirect::OutputAndError(target, _) => {
                let target = self.word(target);
                self.write(target);
            }
            // Nothing with these gets past the guard.
            IoRedirect::HereDocument(_, _) | IoRedirect::HereString(_, _) => {
                self.line.is_uncertain = true;
            }
        }
        Vec::new()
    }

    fn file(&mut self, kind: &IoFileRedirectKind, target: &IoFileRedirectTarget) -> Vec<Word> {
        let target = match target {
            // `2>&1` opens no file.
            IoFileRedirectTarget::Fd(_) => return Vec::new(),
            IoFileRedirectTarget::ProcessSubstitution(_, subshell) => self.process(subshell),
            IoFileRedirectTarget::Filename(target) => self.word(target),
            IoFileRedirectTarget::Duplicate(target) => {
                let target = self.word(target);
                if target.literal().is_some_and(is_descriptor) {
                    return Vec::new();
                }
                // `>&word` with a file name: bash removes the quotes of `word` twice, so which file that
                // is stays uncertain.
                self.line.is_uncertain = true;
                target
            }
        };
        match kind {
            IoFileRedirectKind::Read | IoFileRedirectKind::DuplicateInput => {
                vec![literal("<"), target]
            }
            IoFileRedirectKind::Write
            | IoFileRedirectKind::Append
            | IoFileRedirectKind::ReadAndWrite
            | IoFileRedirectKind::Clobber
            | IoFileRedirectKind::DuplicateOutput => {
                self.write(target);
                Vec::new()
            }
        }
    }

    fn write(&mut self, target: Word) {
        if target.literal() != Some(NOWHERE) {
            let words = vec![literal(">"), target];
            self.line.commands.push(Command { forms: vec![Form { words, is_whole: true }] });
        }
    }

    fn process(&mut self, subshell: &SubshellCommand) -> Word {
        self.list(&subshell.list);
        self.line.is_uncertain = true;
        Word::Unknown
    }

    fn test(&mut self, test: &ExtendedTestExpr) {
        match test {
            ExtendedTestExpr::And(left, right) | ExtendedTestExpr::Or(left, right) => {
                self.test(left);
                self.test(right);
            }
            ExtendedTestExpr::Not(inner) | ExtendedTestExpr::Parenthesized(inner) => {
                self.test(inner);
            }
            ExtendedTestExpr::UnaryTest(_, word) => drop(self.word(word)),
            ExtendedTestExpr::BinaryTest(_, left, right) => {
                self.word(left);
                self.word(right);
            }
        }
    }

    fn word(&mut self, source: &Source) -> Word {
        let value = word::read(&source.value);
        self.line.is_uncertain |= value.word == Word::Unknown;
        self.substitutions(&value.substitutions);
        value.word
    }

    /// Text that is expanded without being a word, such as arithmetic.
    fn text(&mut self, text: &str) {
        self.line.is_uncertain = true;
        self.substitutions(&word::substitutions(text));
    }

    fn substitutions(&mut self, substitutions: &[String]) {
        for inner in substitutions {
            // Their commands count like all others; what does not parse is covered by the uncertainty.
            let inner = parse_plainly(inner).unwrap_or_default();
            self.line.commands.extend(inner.commands);
            self.line.is_uncertain = true;
        }
    }
}

/// A descriptor in `>&…`: `1`, `-` (close) or `1-` (move).
fn is_descriptor(target: &str) -> bool {
    let digits = target.strip_suffix('-').unwrap_or(target);
    !target.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn literal(text: &str) -> Word {
    Word::Literal(text.to_owned())
}
