//! Tasks as people name them: by their name, or by the beginning of their id; and the names of the tasks that messages mention by id.

use std::collections::BTreeMap;

use cantle_clearml::cantle::{GetTasks, TaskView};

use crate::connect::{Connection, no_task};
use crate::error::{CliError, ErrorKind};

/// Characters of an id that are shown next to a name.
const SHORT: usize = 8;
/// How many tasks are listed if a word means several.
const LISTED: usize = 5;

impl Connection {
    /// The id of the task that a word means: its whole id, the beginning of one (4 characters or more), or a name. A word that means
    /// several tasks is refused.
    pub(crate) fn find_task(&self, word: &str) -> Result<String, CliError> {
        if is_id(word) {
            return Ok(word.to_owned());
        }
        let request = GetTasks { find: Some(word.to_owned()), ..GetTasks::default() };
        let found = self.call(&request)?.tasks;
        match found.as_slice() {
            [] => Err(no_task(word)),
            [one] => Ok(one.id.clone()),
            several => Err(ambiguous(word, several)),
        }
    }

    /// As [`Self::find_task`], for each of these words.
    pub(crate) fn find_tasks(&self, words: &[String]) -> Result<Vec<String>, CliError> {
        words.iter().map(|word| self.find_task(word)).collect()
    }

    /// Writes the name before each id of a task in these texts, as far as the user may see it: `behind task train (3f2a91c0)`.
    pub(crate) fn name_tasks(&self, texts: &mut [&mut String]) {
        let mut ids: Vec<String> = texts.iter().flat_map(|text| ids_in(text)).map(str::to_owned).collect();
        ids.sort();
        ids.dedup();
        if ids.is_empty() {
            return;
        }
        // Without names the texts are right, too.
        let Ok(found) = self.answer(&GetTasks { id: ids, ..GetTasks::default() }) else { return };
        let names: BTreeMap<String, String> = found.tasks.into_iter().map(|t| (t.id, t.name)).collect();
        texts.iter_mut().for_each(|text| **text = with_names(text, &names));
    }
}

/// One line for each of them, and what to write instead.
fn ambiguous(word: &str, tasks: &[TaskView]) -> CliError {
    let text = format!("\"{word}\" means {} tasks", tasks.len());
    let shown = tasks.iter().take(LISTED);
    let lines = shown.map(|task| format!("{} is {} ({})", task.id, task.name, task.state));
    let more = tasks.len().saturating_sub(LISTED);
    let more = (more > 0).then(|| format!("and {more} more; cantle tasks lists them"));
    CliError::new(ErrorKind::Usage, text).with_hint("write more of the id").with_hints(lines).with_hints(more)
}

/// A whole id.
fn is_id(word: &str) -> bool {
    word.len() == 32 && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The words of a text that are ids.
fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| is_id(word))
}

fn with_names(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut named = text.to_owned();
    for id in ids_in(text) {
        if let Some(name) = names.get(id) {
            named = named.replace(id, &format!("{name} ({})", &id[..SHORT]));
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn ids_get_their_names() {
        let names = BTreeMap::from([(ID.to_owned(), "train".to_owned())]);
        let text = format!("behind task {ID} of queue q, {ID}.");
        assert_eq!(with_names(&text, &names), "behind task train (01234567) of queue q, train (01234567).");
        let other = format!("behind {}", ID.replace('0', "f"));
        assert_eq!(with_names(&other, &names), other);
        assert_eq!(ids_in(&format!("x{ID} {}", ID.to_uppercase())).count(), 0);
    }

    #[test]
    fn a_word_that_means_several_is_refused_with_what_it_means() {
        let task = |n: usize| -> TaskView {
            let view = serde_json::json!({
                "id": format!("{n:032x}"), "name": format!("t{n}"), "user": "u", "state": "queued", "gpus": [], "milli": 0,
                "memory_limit_bytes": 0, "created": "2026-11-23T12:00:00+00:00",
            });
            serde_json::from_value(view).unwrap()
        };
        let tasks: Vec<TaskView> = (0..7).map(task).collect();
        let error = ambiguous("0000", &tasks);
        assert_eq!(error.to_string(), "\"0000\" means 7 tasks");
        assert_eq!(
            (error.hints().len(), error.hints()[6].as_str()),
            (7, "and 2 more; cantle tasks lists them")
        );
        assert!(error.hints()[1].contains("is t0 ("), "{:?}", error.hints());
    }
}
