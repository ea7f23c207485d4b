//! The proof that a caller may do something to an object. A handler reaches a task or a model only with such a proof, and only
//! this file makes one, after it has asked the guard. A handler that forgets to ask has nothing to call the store with.
//!
//! The table of rights is asked first, for the whole request. Objects that it has let through are remembered in the
//! call, so that a handler's own question about the same object costs no query.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use cantle_store::{Owned, StoreError};

use super::guard::may;
use super::table::Act;
use super::{Principal, Right};
use crate::app::Call;
use crate::error::ApiError;

/// The kinds of objects.
pub(crate) mod object {
    /// A task.
    #[derive(Debug)]
    pub(crate) struct Task;
    /// A model.
    #[derive(Debug)]
    pub(crate) struct Model;
    /// An object with output: a task, or a model.
    #[derive(Debug)]
    pub(crate) struct Reporter;
}

/// Allowed actions, as types. Each includes the actions before it, but for `Run` and `Outbid`, which include to see.
pub(crate) mod act {
    use super::Act;

    /// An act.
    pub(crate) trait Kind {
        const ACT: Act;
    }
    /// Includes to see that the object is there, and its state.
    pub(crate) trait Sees: Kind {}
    /// Includes to read its output.
    pub(crate) trait Reads: Sees {}
    macro_rules! acts {
        ($($name:ident: $($includes:ident),*;)*) => {$(
            #[derive(Debug)]
            pub(crate) struct $name;
            impl Kind for $name {
                const ACT: Act = Act::$name;
            }
            $(impl $includes for $name {})*
        )*};
    }
    acts! {
        See: Sees;
        Read: Sees, Reads;
        Change: Sees, Reads;
        Run: Sees;
        Outbid: Sees;
        Enter: Sees;
    }
}

/// This caller may do `A` to this object of the kind `O`. It holds for one call.
pub(crate) struct Allowed<O, A> {
    id: String,
    proof: PhantomData<fn() -> (O, A)>,
}

impl<O, A> Allowed<O, A> {
    /// The id of the object.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn new(id: &str) -> Self {
        Self { id: id.to_owned(), proof: PhantomData }
    }
}

impl<A> Allowed<object::Reporter, A> {
    /// The output that a former run of the task reported. A caller that may read the output of the newest run may read
    /// this, too.
    pub(crate) fn of_former_run(self, run: i64) -> Self {
        Self { id: cantle_store::former_output(&self.id, run), proof: PhantomData }
    }
}

impl<A> From<Allowed<object::Task, A>> for Allowed<object::Reporter, A> {
    fn from(task: Allowed<object::Task, A>) -> Self {
        Self { id: task.id, proof: PhantomData }
    }
}

impl<A> From<Allowed<object::Model, A>> for Allowed<object::Reporter, A> {
    fn from(model: Allowed<object::Model, A>) -> Self {
        Self { id: model.id, proof: PhantomData }
    }
}

/// Objects that the table of rights let through for one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed {
    endpoint: &'static str,
    tasks: Arc<BTreeMap<String, BTreeSet<Act>>>,
    models: Arc<BTreeMap<String, BTreeSet<Act>>>,
}

impl Passed {
    pub(super) fn of(endpoint: &'static str) -> Self {
        Self { endpoint, ..Self::default() }
    }

    pub(super) fn task(&mut self, id: &str, act: Act) {
        Arc::make_mut(&mut self.tasks).entry(id.to_owned()).or_default().insert(act);
    }

    pub(super) fn model(&mut self, id: &str, act: Act) {
        Arc::make_mut(&mut self.models).entry(id.to_owned()).or_default().insert(act);
    }
}

/// Whether what was asked and granted includes what is wanted.
fn includes(granted: Act, wanted: Act) -> bool {
    granted == wanted
        || match wanted {
            Act::See => true,
            Act::Read => granted == Act::Change,
            Act::Change | Act::Run | Act::Outbid | Act::Enter => false,
        }
}

/// Whether the caller has all rights: then no question is asked. A running task has never.
pub(super) fn may_all(who: &Principal) -> bool {
    [Right::Administer, Right::Serve].into_iter().all(|right| who.may_everywhere(right))
}

impl Call {
    /// The tasks with these ids, if the caller may do `A` to all of them.
    pub(crate) async fn tasks<A: act::Kind>(
        &self,
        ids: &[String],
    ) -> Result<Vec<Allowed<object::Task, A>>, ApiError> {
        let unasked = self.unasked(&self.passed.tasks, ids, A::ACT);
        if !unasked.is_empty() {
            let found = self.app.store.owned_tasks(&unasked).await?;
            all_may(self, A::ACT, &unasked, &found, StoreError::NoTask)?;
        }
        Ok(ids.iter().map(|id| Allowed::new(id)).collect())
    }

    /// The task with this id, if the caller may do `A` to it.
    pub(crate) async fn task<A: act::Kind>(&self, id: &str) -> Result<Allowed<object::Task, A>, ApiError> {
        self.tasks::<A>(&[id.to_owned()]).await?;
        Ok(Allowed::new(id))
    }

    /// The task, if the caller may do `A` to it; `None`: it may not.
    pub(crate) async fn task_if<A: act::Kind>(
        &self,
        id: &str,
    ) -> Result<Option<Allowed<object::Task, A>>, ApiError> {
        Ok(self.tasks_that_may::<A>(&[id.to_owned()]).await?.pop())
    }

    /// Those of these tasks to which the caller may do `A`; the others are left out without a word.
    pub(crate) async fn tasks_that_may<A: act::Kind>(
        &self,
        ids: &[String],
    ) -> Result<Vec<Allowed<object::Task, A>>, ApiError> {
        if ids.is_empty() || may_all(&self.who) {
            return Ok(ids.iter().map(|id| Allowed::new(id)).collect());
        }
        Ok(self.those_that_may(A::ACT, &self.app.store.owned_tasks(ids).await?))
    }

    /// The models with these ids, if the caller may do `A` to all of them.
    pub(crate) async fn models<A: act::Kind>(
        &self,
        ids: &[String],
    ) -> Result<Vec<Allowed<object::Model, A>>, ApiError> {
        let unasked = self.unasked(&self.passed.models, ids, A::ACT);
        if !unasked.is_empty() {
            let found = self.app.store.owned_models(&unasked).await?;
            all_may(self, A::ACT, &unasked, &found, StoreError::NoModel)?;
        }
        Ok(ids.iter().map(|id| Allowed::new(id)).collect())
    }

    /// The model with this id, if the caller may do `A` to it.
    pub(crate) async fn model<A: act::Kind>(&self, id: &str) -> Result<Allowed<object::Model, A>, ApiError> {
        self.models::<A>(&[id.to_owned()]).await?;
        Ok(Allowed::new(id))
    }

    /// Those of these models to which the caller may do `A`; the others are left out without a word.
    pub(crate) async fn models_that_may<A: act::Kind>(
        &self,
        ids: &[String],
    ) -> Result<Vec<Allowed<object::Model, A>>, ApiError> {
        if ids.is_empty() || may_all(&self.who) {
            return Ok(ids.iter().map(|id| Allowed::new(id)).collect());
        }
        Ok(self.those_that_may(A::ACT, &self.app.store.owned_models(ids).await?))
    }

    fn those_that_may<O, A>(&self, act: Act, found: &[Owned]) -> Vec<Allowed<O, A>> {
        let is_meant = |object: &&Owned| {
            let missing = StoreError::NoTask(object.id.clone()).into();
            may(&self.who, act, object, self.passed.endpoint, missing).is_ok()
        };
        found.iter().filter(is_meant).map(|object| Allowed::new(&object.id)).collect()
    }

    /// The task, or with `is_model` the model, that has output.
    pub(crate) async fn reporter<A: act::Kind>(
        &self,
        id: &str,
        is_model: bool,
    ) -> Result<Allowed<object::Reporter, A>, ApiError> {
        Ok(if is_model { self.model::<A>(id).await?.into() } else { self.task::<A>(id).await?.into() })
    }

    /// The ids about which the table has not asked, in order.
    fn unasked(&self, passed: &BTreeMap<String, BTreeSet<Act>>, ids: &[String], wanted: Act) -> Vec<String> {
        if may_all(&self.who) {
            return Vec::new();
        }
        let is_passed = |id: &str| {
            passed.get(id).is_some_and(|acts| acts.iter().any(|granted| includes(*granted, wanted)))
        };
        let unasked: BTreeSet<&String> = ids.iter().filter(|id| !is_passed(id)).collect();
        unasked.into_iter().cloned().collect()
    }
}

fn all_may(
    call: &Call,
    act: Act,
    ids: &[String],
    found: &[Owned],
    missing: fn(String) -> StoreError,
) -> Result<(), ApiError> {
    for object in found {
        may(&call.who, act, object, call.passed.endpoint, missing(object.id.clone()).into())?;
    }
    let absent = ids.iter().find(|id| !found.iter().any(|object| object.id == **id));
    absent.map_or(Ok(()), |id| Err(missing(id.clone()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_change_includes_to_read_and_nothing_includes_to_change() {
        for granted in [Act::See, Act::Read, Act::Change, Act::Run, Act::Outbid] {
            assert!(includes(granted, granted) && includes(granted, Act::See), "{granted:?}");
            assert_eq!(includes(granted, Act::Change), granted == Act::Change, "{granted:?}");
            assert_eq!(
                includes(granted, Act::Read),
                matches!(granted, Act::Read | Act::Change),
                "{granted:?}"
            );
        }
    }
}
