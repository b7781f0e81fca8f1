//! Opening and closing the store's file, which concerns only engines with a file. The contract of
//! every engine is in `conformance`.

use std::path::Path;

use asyncagents::store::{OpenOutcome, Store};
use asyncagents::task::SessionId;

#[tokio::test]
async fn a_closed_store_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.db");
    let (store, opened) = Store::open(&file, |_| {}).unwrap();
    assert_eq!(opened, OpenOutcome::New);
    let session = SessionId::new("ses_parent");
    store.instances().put_place_of_parent(&session, "somewhere".into()).await.unwrap();
    let place = store.instances().place_of_parent(&session).unwrap();
    assert_eq!(place.as_deref(), Some("somewhere"), "a reader stays behind");
    store.close();
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [Path::new("tasks.db")]);
    let (store, opened) = Store::open(&file, |_| {}).unwrap();
    assert_eq!(opened, OpenOutcome::Existing);
    assert_eq!(store.instances().place_of_parent(&session).unwrap(), place);
    assert_eq!(store.integrity().check().unwrap(), [""; 0]);
}
