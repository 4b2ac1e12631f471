//! What was told already.

use xdb_sched::told::Told;

fn tell(told: &mut Told, subject: &str, texts: &[&str]) -> Vec<String> {
    let mut texts = texts.iter().map(|text| (*text).to_owned()).collect();
    told.keep_new(subject, &mut texts);
    texts
}

#[test]
fn each_is_told_once_of_each_subject() {
    let mut told = Told::default();
    assert_eq!(tell(&mut told, "A", &["a[0].x", "b", "a[17].x", "a[0].y"]), ["a[0].x", "b", "a[0].y"]);
    assert_eq!(tell(&mut told, "A", &["a[1].x", "c", "b"]), ["c"]);
    assert_eq!(tell(&mut told, "B", &["b"]), ["b"]);
    assert_eq!(tell(&mut told, "A", &["b1", "b2"]), ["b1", "b2"], "numbers elsewhere are part of it");
}

#[test]
fn what_was_rolled_back_is_told_again() {
    let mut told = Told::default();
    tell(&mut told, "A", &["a"]);
    told.settle();
    tell(&mut told, "A", &["b"]);
    told.undo();
    assert_eq!(tell(&mut told, "A", &["a", "b"]), ["b"]);
}

#[test]
fn it_takes_little_room_and_no_subject_silences_another() {
    let mut told = Told::default();
    let many: Vec<_> = (0..1_000).map(|number| format!("key{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(tell(&mut told, "A", &many).len(), 64);
    assert!(tell(&mut told, "A", &["another"]).is_empty());
    for number in 0..5_000 {
        assert_eq!(tell(&mut told, &format!("S{number}"), &["a"]), ["a"]);
        told.settle();
    }
}
