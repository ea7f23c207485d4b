//! `projects.*`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wire::endpoint;
use crate::{Empty, Listing, Updated};

/// A project: tasks under one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProjectRecord {
    /// 32 hex digits.
    pub id: String,
    /// Path-like name, `team/vision`.
    pub name: String,
    /// Free text.
    pub description: String,
}

/// `projects.get_all`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetAll {
    /// The condition on projects.
    #[serde(flatten)]
    pub list: Listing,
}
endpoint!("projects.get_all", GetAll => Projects);

/// Answer with projects.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Projects {
    /// The results.
    pub projects: Vec<ProjectRecord>,
}

/// `projects.get_by_id`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetById {
    /// The project's id.
    pub project: String,
}
endpoint!("projects.get_by_id", GetById => OneProject);

/// Answer with one project.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OneProject {
    /// The project.
    pub project: ProjectRecord,
}

/// `projects.create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Create {
    /// Its name; must be new.
    pub name: String,
    /// Free text.
    #[serde(default)]
    pub description: String,
    /// Further fields (tags, default output), kept as they are.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("projects.create", Create => Created);

/// Answer of calls that make something.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Created {
    /// Id of what was made.
    pub id: String,
}

/// `projects.update`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// The project's id.
    pub project: String,
    /// New values.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("projects.update", Update => Updated);

/// `projects.delete`: refused while tasks are in it, unless forced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delete {
    /// The project's id.
    pub project: String,
    /// Also if tasks are in it; they lose their project.
    pub force: bool,
}
endpoint!("projects.delete", Delete => Empty);
