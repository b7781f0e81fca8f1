//! Models and their credentials: where keys and addresses come from, who gets to see them, and what is
//! said when there are none.

use std::path::PathBuf;

use serde_json::Value;
use tokio::task::block_in_place;

use crate::support::ModelServer;
use crate::support::process::{Ended, Shell};

const MODEL: &str = "openai/scripted";

/// A user with a project and a model server that is named nowhere yet.
struct Place {
    shell: Shell,
    server: ModelServer,
    project: PathBuf,
}

impl Place {
    async fn build() -> Place {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", MODEL);
        let project = shell.path("project");
        std::fs::create_dir(&project).unwrap();
        Place { shell, server, project }
    }

    fn configure(&mut self, text: &str) {
        let file = self.shell.path("config.toml");
        std::fs::write(&file, text).unwrap();
        self.shell.set("ASYNCAGENTS_CONFIG", file);
    }

    fn run(&self, prompt: &str) -> Ended {
        self.shell.run_in(&self.project, ["run", prompt])
    }

    /// Status, result and error of a task, once it has ended.
    fn end(&self, id: &str) -> (String, String, String) {
        let waited = self.shell.run(["wait", "--timeout", "60", id]);
        assert_ne!(waited.code, 124, "{waited:?}");
        let task: Value = self.shell.json(["output", id, "--json"]);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("result"), text("error"))
    }

    /// Launches and says which key the server was shown.
    fn key_shown(&self) -> String {
        let run = self.run("@say fine");
        assert_eq!(run.code, 0, "{run:?}");
        let fine = ("completed".to_owned(), "fine".to_owned(), String::new());
        assert_eq!(self.end(run.stdout.trim()), fine);
        let shown = self.server.asked().pop().unwrap().authorization.unwrap();
        shown.trim_start_matches("Bearer ").to_owned()
    }

    /// What a launch is refused with; nothing is left of it.
    fn refusal(&self) -> String {
        let before = self.shell.tasks().len();
        let run = self.run("@say fine");
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
        assert_eq!(self.shell.tasks().len(), before);
        run.stderr
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_the_environment_is_not_sent_to_an_address_of_the_configuration() {
    let mut place = Place::build().await;
    place.shell.set("OPENAI_API_KEY", "sk-of-the-environment");
    std::fs::write(place.shell.path("key"), "sk-of-the-file\n").unwrap();
    let origin = place.server.origin();
    let section = format!("[providers.openai]\nbase_url = '{origin}'\n");
    place.configure(&format!("{section}key_file = 'key'\n"));
    block_in_place(|| {
        assert_eq!(place.key_shown(), "sk-of-the-file");
        place.configure(&section);
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        let told = place.refusal();
        assert!(told.contains("and an address from the configuration file"), "{told}");
        place.shell.unset("OPENAI_API_KEY");
        assert_eq!(place.shell.run(["daemon", "stop"]).code, 0);
        assert_eq!(place.key_shown(), "none");
    });
}
