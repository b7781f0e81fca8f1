//! Which files agents do not see by default in a workspace that is the home directory (X2, T15).

use std::fs;

use asyncagents::wire::TaskView;
use tokio::task::block_in_place;

use crate::support::ModelServer;
use crate::support::process::{Shell, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_home_directory_our_token_is_denied_and_credentials_need_a_permission() {
    let server = ModelServer::start().await;
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
    shell.set("OPENAI_BASE_URL", server.base_url());
    shell.set("OPENAI_API_KEY", "sk-test");
    fs::create_dir_all(shell.path(".ssh")).unwrap();
    fs::write(shell.path(".ssh/id"), "CANARY").unwrap();
    let told = || server.asked().pop().unwrap().texts("tool");
    block_in_place(|| {
        let over = shell.launch_to_the_end("@call read {\"path\": \"home/token\"}\n@say over");
        let closed = "`home/token` belongs to asyncagents itself (token, tasks, conversations) and is \
                      closed to agents; do without it";
        assert_eq!(told(), [closed], "{over:?}");
        let task = shell.launch("@call read {\"path\": \".ssh/id\"}\n@say read it");
        let detail = |task: &TaskView| shell.task(&task.session_id).progress.detail;
        let asked = "read .ssh/id, which holds credentials";
        until("it asks", || detail(&task).as_deref() == Some(asked));
        assert_eq!(shell.run(["deny", &task.session_id]).code, 0);
        shell.run(["wait", &task.session_id]);
        assert!(!told().concat().contains("CANARY"), "{:?}", told());
    });
}
