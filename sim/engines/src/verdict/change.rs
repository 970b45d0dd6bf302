//! A question with a change made to it.

use crate::command::{Command, Given};
use crate::finding::Change;
use crate::flags;
use crate::question::Question;
use crate::version::Version;

/// Makes the changes.
pub(super) fn apply(question: &Question, command: &Command, changes: &[Change]) -> (Question, Command) {
    let (mut question, mut command) = (question.clone(), command.clone());
    for change in changes {
        match change {
            Change::Set(flag, value) => set(&question, &mut command, flag, value.as_deref()),
            Change::Remove(flag) => {
                let name = canonical(&question, flag);
                command.given.retain(|g| g.name != name && g.written != *flag);
            }
            Change::Word(word) => command.stray.retain(|s| s.text != *word),
            Change::Env(name, Some(value)) => {
                command.env.remove(name);
                question.env.insert(name.clone(), value.clone());
            }
            Change::Env(name, None) => {
                command.env.remove(name);
                question.env.remove(name);
            }
            Change::Version(version) => question.version = changed(&question, version),
        }
    }
    (question, command)
}

/// `0.5.10`, or a day as `20260402`.
fn changed(question: &Question, version: &str) -> Version {
    let engine = question.version.engine;
    match (version.len(), version.parse::<u32>()) {
        (8, Ok(_)) => Version::parse(engine, &format!("{}-{}-{}", &version[..4], &version[4..6], &version[6..])),
        _ => Version::parse(engine, version),
    }
}

fn canonical(question: &Question, flag: &str) -> String {
    flags::find(question.version.engine, flag).map_or_else(|| flag.to_owned(), |f| f.name.to_owned())
}

/// The name of a flag that the question's version takes.
pub(super) fn spelled<'a>(question: &Question, flag: &'a str) -> &'a str {
    match flags::find(question.version.engine, flag) {
        Some(known) if !known.range_of(flag).contains(&question.version) => known.name_in(&question.version),
        _ => flag,
    }
}

fn set(question: &Question, command: &mut Command, flag: &str, value: Option<&str>) {
    let (name, flag) = (canonical(question, flag), spelled(question, flag));
    command.given.retain(|g| g.name != name);
    let known = flags::find(question.version.engine, flag).is_some();
    command.given.push(Given { name, written: flag.to_owned(), value: value.map(str::to_owned), span: 0..0, known });
}
