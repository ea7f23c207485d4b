//! Lists of tasks and models. One may have to read, test and write out everything that is kept, so each is bounded: one user's lists
//! are made one after the other, in small parts, and between two parts the lists of others come first. A list that would take too
//! long, or become too long, is refused.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::error::ApiError;

/// From the request to the last part, waiting included.
const DEADLINE: Duration = Duration::from_secs(20);
/// The most bytes of documents that one part reads; a single longer one is a part, too.
const PART_BYTES: usize = 4 << 20;
/// The most objects of one part.
const PART_OBJECTS: usize = 500;
/// The most bytes of an answer, about.
const ANSWER_BYTES: usize = 32 << 20;
/// Users that are remembered although they have no list in work.
const IDLE_USERS: usize = 256;

/// The places in which lists are made.
#[derive(Debug)]
pub(crate) struct Lists {
    /// A part takes one of them; first come, first served.
    parts: Arc<Semaphore>,
    /// A list takes one of its user's, so that no user waits for more than one part of each other one.
    of_users: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    of_one: usize,
    deadline: Duration,
}

impl Default for Lists {
    /// A user has half of the cores, and there are as many parts at once as cores: agents, which ask for one task, must not wait
    /// until lists are made.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new((cores / 2).max(1), cores.max(2), DEADLINE)
    }
}

impl Lists {
    fn new(of_one: usize, parts: usize, deadline: Duration) -> Self {
        Self { parts: Arc::new(Semaphore::new(parts)), of_users: Mutex::default(), of_one, deadline }
    }

    /// A list of this user, once its earlier ones are made.
    pub(crate) async fn begin(&self, user: &str) -> Result<List, ApiError> {
        let until = Instant::now() + self.deadline;
        let places = {
            let mut users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
            if users.len() > IDLE_USERS {
                users.retain(|_, places| Arc::strong_count(places) > 1);
            }
            let new = || Arc::new(Semaphore::new(self.of_one));
            Arc::clone(users.entry(user.to_owned()).or_insert_with(new))
        };
        let place = in_time(until, self.deadline, places).await?;
        Ok(List { parts: Arc::clone(&self.parts), until, deadline: self.deadline, bytes: 0, _place: place })
    }
}

/// A list that is being made.
#[derive(Debug)]
pub(crate) struct List {
    parts: Arc<Semaphore>,
    until: Instant,
    deadline: Duration,
    bytes: usize,
    _place: OwnedSemaphorePermit,
}

impl List {
    /// The place for one part; it is free again when it is dropped.
    pub(crate) async fn part(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        in_time(self.until, self.deadline, Arc::clone(&self.parts)).await
    }

    /// Until when it has to be made.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Counts an object of the answer.
    pub(crate) fn add(&mut self, object: &Value) -> Result<(), ApiError> {
        self.bytes = self.bytes.saturating_add(weight(object));
        if self.bytes <= ANSWER_BYTES {
            return Ok(());
        }
        Err(ApiError::invalid(format!(
            "the answer would be longer than {} MiB: ask for fewer fields (only_fields) or a smaller page (page_size)",
            ANSWER_BYTES >> 20
        )))
    }

    /// It took too long.
    pub(crate) fn late(&self) -> ApiError {
        late(self.deadline)
    }
}

async fn in_time(
    until: Instant,
    deadline: Duration,
    places: Arc<Semaphore>,
) -> Result<OwnedSemaphorePermit, ApiError> {
    match timeout_at(until, places.acquire_owned()).await {
        Ok(Ok(place)) => Ok(place),
        // The places are never taken away.
        Ok(Err(_)) | Err(_) => Err(late(deadline)),
    }
}

fn late(deadline: Duration) -> ApiError {
    ApiError::invalid(format!(
        "the list was not made in {} s: name a project, a status or ids, or ask for a smaller page (page_size); a user's lists are \
         made one after the other",
        deadline.as_secs()
    ))
}

/// Ids in their order, cut where the documents of a part would be too long. An id without a size has no document.
pub(crate) fn parts(ids: Vec<String>, sizes: &BTreeMap<String, usize>) -> Vec<Vec<String>> {
    let (mut parts, mut bytes): (Vec<Vec<String>>, _) = (Vec::new(), 0_usize);
    for id in ids {
        let size = sizes.get(&id).copied().unwrap_or(0);
        match parts.last_mut() {
            Some(part) if bytes.saturating_add(size) <= PART_BYTES && part.len() < PART_OBJECTS => {
                part.push(id);
                bytes += size;
            }
            _ => {
                parts.push(vec![id]);
                bytes = size;
            }
        }
    }
    parts
}

/// About as many bytes as the value has as JSON.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 3,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 2,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + 4 + weight(value)).sum::<usize>() + 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(50);

    #[test]
    fn parts_are_cut_by_bytes_and_keep_the_order() {
        let ids: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        let sizes = BTreeMap::from([
            ("a".to_owned(), 1),
            ("b".to_owned(), PART_BYTES),
            ("c".to_owned(), PART_BYTES - 1),
            ("d".to_owned(), 1),
        ]);
        assert_eq!(parts(ids.clone(), &sizes), [vec!["a"], vec!["b"], vec!["c", "d", "e"]]);
        assert_eq!(parts(ids.clone(), &BTreeMap::new()), [ids]);
        assert!(parts(Vec::new(), &sizes).is_empty());
        assert_eq!(parts(vec!["x".to_owned(); PART_OBJECTS + 1], &sizes).len(), 2);
    }

    #[tokio::test]
    async fn a_user_waits_for_itself_and_not_for_the_lists_of_others() {
        let lists = Lists::new(1, 2, WAIT);
        let bob = lists.begin("bob").await.unwrap();
        let in_work = bob.part().await.unwrap();
        let refused = lists.begin("bob").await.unwrap_err();
        assert!(refused.message.contains("one after the other"), "{}", refused.message);
        let ann = lists.begin("ann").await.unwrap();
        assert!(ann.part().await.is_ok());
        // With both places taken the third waits, until a part, and not until a list, is made.
        let second = ann.part().await.unwrap();
        let eve = lists.begin("eve").await.unwrap();
        assert!(eve.part().await.is_err());
        let eve = lists.begin("eve2").await.unwrap();
        drop((in_work, second));
        assert!(eve.part().await.is_ok() && bob.until() < eve.until());
        drop(bob);
        assert!(lists.begin("bob").await.is_ok());
    }

    #[tokio::test]
    async fn an_answer_has_a_limit() {
        let lists = Lists::default();
        let mut list = lists.begin("bob").await.unwrap();
        let object = serde_json::json!({"comment": "x".repeat(ANSWER_BYTES / 2 - 100)});
        list.add(&object).unwrap();
        list.add(&object).unwrap();
        assert!(list.add(&object).unwrap_err().message.contains("32 MiB"));
        let text = object.to_string();
        assert!(weight(&object).abs_diff(text.len()) < 16);
    }
}
