//! The objects that lists may hold. A list of tasks, models, projects or events is read with a [`Sight`], which only
//! this file makes, from the caller's own rights: a handler that forgets whose list it makes does not compile.

use cantle_store::{Scope, TaskFilter};

use super::Right;
use crate::app::Call;

/// The part of everything to which a caller has a right.
#[derive(Clone, Debug)]
pub(crate) struct Sight(Option<Scope>);

impl Sight {
    /// It is everything.
    pub(crate) const fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// For the store's queries.
    pub(crate) const fn scope(&self) -> Option<&Scope> {
        self.0.as_ref()
    }

    /// The filter, for what is in sight.
    pub(crate) fn of(&self, filter: TaskFilter) -> TaskFilter {
        TaskFilter { scope: self.0.clone(), ..filter }
    }
}

impl Call {
    /// The objects that the caller may see.
    pub(crate) fn seen(&self) -> Sight {
        Sight(self.who.scope(Right::See))
    }

    /// Where the caller may read the output, too.
    pub(crate) fn read(&self) -> Sight {
        Sight(self.who.scope(Right::Read))
    }
}
