//! Permission requests of children, which wait for a person (T15).

use asyncagents::supervisor::{Answer, Error};
use asyncagents::task::{Answered, Answerer, Door, State};

use crate::support::World;

#[tokio::test]
async fn a_parked_request_is_listed_and_answered() {
    let world = World::start().await;
    let parent = world.parent().await;
    for (answer, by_task) in [(Answer::Allow, true), (Answer::Deny, false)] {
        let task = world.launch(&parent, "@ask bash rm -rf x\n@say found").await;
        world.until("it asks", || !world.supervisor.asks().is_empty()).await;
        let asked = world.supervisor.asks().remove(0);
        assert_eq!(
            (asked.task.clone(), asked.ask.what.as_str()),
            (task.id.clone(), "bash rm -rf x")
        );
        let reference = if by_task { task.short_id.to_string() } else { asked.ask.id.clone() };
        let by = Answerer { door: Door::Cli, by: "cli".into() };
        let answered = world.supervisor.answer(&reference, answer, by.clone()).await.unwrap();
        assert_eq!(answered, std::slice::from_ref(&asked));
        let recorded = world.supervisor.answers(&task.id).unwrap();
        let expected = Answered {
            id: asked.ask.id,
            what: "bash rm -rf x".into(),
            allowed: answer == Answer::Allow,
            door: Door::Cli,
            by: "cli".into(),
            at: recorded[0].at,
        };
        assert_eq!(recorded, [expected]);
        let expected = match answer {
            Answer::Allow => State::Completed { result: "found".into(), error: None },
            Answer::Deny => State::Failed {
                error: "stopped because permission was refused: bash: refused".into(),
                result: None,
            },
        };
        assert_eq!(world.ended(&task).await.state, expected);
        assert_eq!(world.supervisor.asks(), []);
        let again = world.supervisor.answer(&reference, answer, by).await.unwrap_err();
        match by_task {
            true => assert!(matches!(again, Error::NothingAsked(_)), "{again}"),
            false => {
                let text = again.to_string();
                let start = format!("`{reference}` was answered already: denied at ");
                assert!(text.starts_with(&start) && text.ends_with(" (cli)"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_repeated_answer_is_that_of_the_first_call_and_not_given_to_what_was_asked_since() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@ask bash one\n@ask bash two\n@say found").await;
    let asked = async |what: &str| {
        let is_open = || world.supervisor.asks().iter().any(|asked| asked.ask.what == what);
        world.until("it asks", is_open).await;
    };
    let answer = async |reference: &str, key: &str| {
        let by = Answerer { door: Door::Cli, by: "cli".into() };
        let answered = world.supervisor.answer_once(reference, Answer::Allow, by, Some(key)).await;
        answered.unwrap().into_iter().map(|answered| answered.ask).collect::<Vec<_>>()
    };
    asked("bash one").await;
    let first = answer(task.id.as_str(), "key").await;
    assert_eq!(first.iter().map(|ask| ask.what.as_str()).collect::<Vec<_>>(), ["bash one"]);
    asked("bash two").await;
    assert_eq!(answer(task.id.as_str(), "key").await, first);
    assert_eq!(answer(&first[0].id, "key").await, first);
    asked("bash two").await;
    let second = answer(task.id.as_str(), "another key").await;
    assert_eq!(second.iter().map(|ask| ask.what.as_str()).collect::<Vec<_>>(), ["bash two"]);
    let end = State::Completed { result: "found".into(), error: None };
    assert_eq!(world.ended(&task).await.state, end);
    assert_eq!(world.supervisor.answers(&task.id).unwrap().len(), 2);
}

#[tokio::test]
async fn a_cancelled_task_has_no_open_requests() {
    let world = World::start().await;
    let parent = world.parent().await;
    let task = world.launch(&parent, "@ask bash ls\n@say found").await;
    world.until("it asks", || !world.supervisor.asks().is_empty()).await;
    let target = asyncagents::supervisor::Target::Task(task.id);
    world.supervisor.cancel(&crate::support::caller(&parent), target).await.unwrap();
    world.supervisor.sweep();
    world.until("it asks nothing", || world.supervisor.asks().is_empty()).await;
}
