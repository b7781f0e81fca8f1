//! Parent conversations of any size in OpenCode's JSON: turns of a question, a few steps with tool
//! calls and an answer, with all the other fields that its messages carry.

use std::fmt::Write;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compaction {
    None,
    Middle,
    Late,
}

impl Compaction {
    pub(crate) const ALL: [Compaction; 3] =
        [Compaction::None, Compaction::Middle, Compaction::Late];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Compaction::None => "none",
            Compaction::Middle => "middle",
            Compaction::Late => "late",
        }
    }

    /// The compaction's position, as a share of the conversation.
    fn share(self) -> Option<f64> {
        match self {
            Compaction::None => None,
            Compaction::Middle => Some(0.5),
            Compaction::Late => Some(0.95),
        }
    }
}

const TOOLS: [&str; 5] = ["read", "bash", "grep", "edit", "glob"];
/// Lengths of tool results in lines, from a word to a file.
const LINES: [usize; 6] = [1, 4, 12, 40, 120, 400];

pub(crate) fn write(megabytes: f64, compaction: Compaction) -> String {
    let most = (megabytes * 1e6) as usize;
    let mut compact_at = compaction.share().map(|share| (most as f64 * share) as usize);
    let mut array = String::with_capacity(most + 100_000);
    let mut n = 0;
    while array.len() < most {
        if compact_at.is_some_and(|at| array.len() >= at) {
            compact_at = None;
            add(&mut array, marker(n));
            add(&mut array, summary(n + 1));
            n += 2;
        }
        n += 1;
        let message = match n % 8 {
            1 => user(n),
            0 => answer(n),
            _ => step(n),
        };
        add(&mut array, message);
    }
    array.push(']');
    array
}

fn add(array: &mut String, message: Value) {
    array.push(if array.is_empty() { '[' } else { ',' });
    write!(array, "{message}").expect("a string takes everything");
}

fn info(n: usize, role: &str) -> Value {
    json!({
        "id": format!("msg_1e11f129d{n:07}K1Z84q2KoJ"), "sessionID": "ses_e1ee0ed9effe1C2uvOX0PQ8sIF",
        "role": role, "time": {"created": 1_794_778_272_413_u64, "completed": 1_794_778_273_413_u64},
        "parentID": format!("msg_1e11f129d{:07}K1Z84q2KoJ", n - n % 8), "modelID": "large-1",
        "providerID": "provider", "mode": "build", "agent": "build",
        "path": {"cwd": "/project", "root": "/"}, "cost": 0.002469,
        "tokens": {"total": 2454, "input": 2439, "output": 15, "reasoning": 0,
                   "cache": {"read": 0, "write": 0}},
        "finish": "stop",
    })
}

fn user(n: usize) -> Value {
    let text = format!("Question {n}: where is \"the login\" handled,\nand who calls it?\n");
    json!({"info": info(n, "user"), "parts": [part(n, json!({"type": "text", "text": text}))]})
}

fn answer(n: usize) -> Value {
    let text = format!("It is in `src/login/{n}.rs`. ").repeat(20);
    json!({"info": info(n, "assistant"), "parts": [
        part(n, json!({"type": "step-start"})),
        part(n, json!({"type": "reasoning", "text": "Let me think about that.\n".repeat(30)})),
        part(n, json!({"type": "text", "text": text})),
        part(n, json!({"type": "step-finish", "reason": "stop", "cost": 0.002, "tokens": {}})),
    ]})
}

fn step(n: usize) -> Value {
    let line = |l: usize| format!("{l:>5}\tlet user = find(\"name {n}\")?; // says “hello”\n");
    let output: String = (0..LINES[n * 7 % LINES.len()]).map(line).collect();
    let state = json!({
        "status": "completed", "output": output, "title": "src/login.rs",
        "input": {"filePath": format!("/project/src/login/{n}.rs"), "offset": n, "limit": 2000},
        "metadata": {"preview": "let user", "truncated": false},
        "time": {"start": 1_794_778_273_070_u64, "end": 1_794_778_273_111_u64},
    });
    let tool = TOOLS[n % TOOLS.len()];
    json!({"info": info(n, "assistant"), "parts": [
        part(n, json!({"type": "step-start"})),
        part(n, json!({"type": "tool", "callID": format!("call_{n}"), "tool": tool, "state": state})),
        part(n, json!({"type": "step-finish", "reason": "tool-calls", "cost": 0.002, "tokens": {}})),
    ]})
}

fn marker(n: usize) -> Value {
    json!({"info": info(n, "user"), "parts": [part(n, json!({"type": "compaction", "auto": true}))]})
}

fn summary(n: usize) -> Value {
    let mut info = info(n, "assistant");
    info["summary"] = json!(true);
    let text = "What was found so far.\n".repeat(100);
    json!({"info": info, "parts": [part(n, json!({"type": "text", "text": text}))]})
}

fn part(n: usize, mut part: Value) -> Value {
    part["id"] = json!(format!("prt_1e11f12a4{n:07}EEuF7Li6Xt"));
    part["sessionID"] = json!("ses_e1ee0ed9effe1C2uvOX0PQ8sIF");
    part["messageID"] = json!(format!("msg_1e11f129d{n:07}K1Z84q2KoJ"));
    part
}
