//! Checks each call once, before anything is done, against the rights that the table requires for it.

use std::collections::BTreeSet;

use cantle_clearml::SECTION;
use cantle_model::{TaskStatus, project_name};
use cantle_store::{Owned, StoreError};
use serde_json::Value;

use super::allowed::{Passed, may_all};
use super::table::{Act, Need, Rule};
use super::{Principal, Right};
use crate::app::Call;
use crate::error::ApiError;

/// Paths at which projects are named, which need not exist; ids are at all others.
const NAMES: [&str; 3] = ["name", "new_location", "project_name"];
/// How many things one request may name.
const MOST: usize = 10_000;

/// Refuses a call that lacks what its endpoint needs. The server answers about an invisible object as if it did not exist.
/// Returns what was let through.
pub(crate) async fn check(call: &Call, rule: &Rule, body: &Value) -> Result<Passed, ApiError> {
    let passed = Passed::of(rule.endpoint);
    // A caller with all rights causes no queries to the database.
    if may_all(&call.who) {
        return Ok(passed);
    }
    let mut asked = Asked { call, endpoint: rule.endpoint, body, passed };
    for need in rule.needs {
        asked.has(*need).await?;
    }
    Ok(asked.passed)
}

/// A call and what it asks for.
struct Asked<'a> {
    call: &'a Call,
    endpoint: &'static str,
    body: &'a Value,
    passed: Passed,
}

impl Asked<'_> {
    async fn has(&mut self, need: Need) -> Result<(), ApiError> {
        match need {
            Need::Anyone | Need::Filtered | Need::Own => Ok(()),
            Need::Person if self.who().run.is_some() => {
                Err(ApiError::not_of_a_task(self.who(), self.endpoint))
            }
            Need::Person => Ok(()),
            Need::Everywhere(rights) => self.everywhere(rights),
            Need::Task(act, path) => self.tasks(act, path).await,
            Need::Model(act, path) => {
                let ids = self.at(path)?;
                self.models(act, &ids).await
            }
            Need::Project(right, path) => self.project(right, path, false).await,
            Need::Within(right, path) => self.project(right, path, true).await,
            Need::Above(right, path) => {
                let project = self.at(path)?.pop().unwrap_or_default();
                let project = project_name(&project).unwrap_or(project);
                self.must(right, project.rsplit_once('/').map(|(above, _)| above))
            }
            Need::Duplicate(task, project) => self.copy(task, project).await,
            Need::Fair(path) => self.fair(path).await,
            Need::Node(path) => self.node(path),
        }
    }

    fn who(&self) -> &Principal {
        &self.call.who
    }

    fn must(&self, right: Right, project: Option<&str>) -> Result<(), ApiError> {
        if self.who().may(right, project) {
            return Ok(());
        }
        Err(ApiError::forbidden(self.who(), right, self.endpoint, project))
    }

    fn everywhere(&self, rights: &[Right]) -> Result<(), ApiError> {
        match rights {
            [first, ..] if !rights.iter().any(|right| self.who().may_everywhere(*right)) => {
                Err(ApiError::forbidden(self.who(), *first, self.endpoint, None))
            }
            _ => Ok(()),
        }
    }

    /// The words at a path of the request: `a` is a word or a list of them, `a.b` those of an object or of each in a list.
    fn at(&self, path: &str) -> Result<Vec<String>, ApiError> {
        let mut found = vec![self.body];
        for name in path.split('.').filter(|name| !name.is_empty()) {
            let members = found.into_iter().filter_map(|value| value.get(name));
            found = members
                .flat_map(|value| value.as_array().map_or_else(|| vec![value], |list| list.iter().collect()))
                .collect();
        }
        if found.len() > MOST {
            return Err(ApiError::invalid(format!("{path}: at most {MOST} at once")));
        }
        let word = |value: &Value| match value {
            Value::String(word) => Ok(word.clone()),
            _ => Err(ApiError::invalid(format!("{path}: text is needed"))),
        };
        let words: BTreeSet<String> = found.into_iter().map(word).collect::<Result<_, _>>()?;
        Ok(words.into_iter().filter(|word| !word.is_empty()).collect())
    }

    async fn tasks(&mut self, act: Act, path: &str) -> Result<(), ApiError> {
        let ids = self.at(path)?;
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.call.store.owned_tasks(&ids).await?;
        for task in &found {
            may(self.who(), act, task, self.endpoint, StoreError::NoTask(task.id.clone()).into())?;
            self.passed.task(&task.id, act);
        }
        let mut unknown: BTreeSet<&String> = ids.iter().collect();
        found.iter().for_each(|task| {
            unknown.remove(&task.id);
        });
        let others: Vec<String> = unknown.iter().map(|id| (*id).clone()).collect();
        let models =
            if others.is_empty() { Vec::new() } else { self.call.store.owned_models(&others).await? };
        for model in &models {
            may(self.who(), act, model, self.endpoint, StoreError::NoTask(model.id.clone()).into())?;
            unknown.remove(&model.id);
            self.passed.model(&model.id, act);
        }
        // Some endpoints answer with nothing for what does not exist: then nothing must differ for what is hidden.
        unknown.first().map_or(Ok(()), |id| Err(StoreError::NoTask((*id).clone()).into()))
    }

    async fn models(&mut self, act: Act, ids: &[String]) -> Result<(), ApiError> {
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.call.store.owned_models(ids).await?;
        for model in &found {
            may(self.who(), act, model, self.endpoint, StoreError::NoModel(model.id.clone()).into())?;
            self.passed.model(&model.id, act);
        }
        let missing = ids.iter().find(|id| !found.iter().any(|model| model.id == **id));
        missing.map_or(Ok(()), |id| Err(StoreError::NoModel(id.clone()).into()))
    }

    async fn project(&self, right: Right, path: &str, always: bool) -> Result<(), ApiError> {
        let named = self.at(path)?;
        if named.is_empty() {
            return if always { self.must(right, None) } else { Ok(()) };
        }
        for wanted in &named {
            // The name that the project will have, which is not always the one that was written.
            let spelled = project_name(wanted);
            let wanted = spelled.as_deref().unwrap_or(wanted);
            let name = if NAMES.contains(&path) { wanted.to_owned() } else { self.name_of(wanted).await? };
            if !self.who().may(right, Some(&name)) {
                // Only a caller that sees a project learns its name: to others it is as if it did not exist.
                let shown = if self.who().may(Right::See, Some(&name)) { &name } else { wanted };
                return Err(ApiError::forbidden(self.who(), right, self.endpoint, Some(shown)));
            }
        }
        Ok(())
    }

    /// The name of the project with this id; what is no id may be a name.
    async fn name_of(&self, id: &str) -> Result<String, ApiError> {
        match self.call.store.project(id).await {
            Ok(found) => Ok(found.name),
            Err(StoreError::NoProject(_)) => Ok(id.to_owned()),
            Err(error) => Err(error.into()),
        }
    }

    async fn copy(&self, task: &str, project: &str) -> Result<(), ApiError> {
        if !self.at(project)?.is_empty() {
            return self.project(Right::Submit, project, true).await;
        }
        for task in self.call.store.owned_tasks(&self.at(task)?).await? {
            self.must(Right::Submit, task.project.as_deref())?;
        }
        Ok(())
    }

    async fn fair(&self, path: &str) -> Result<(), ApiError> {
        let of_request =
            [self.body.get("hyperparams"), self.body.get("task").and_then(|task| task.get("hyperparams"))];
        let mut asked: Vec<&Value> = of_request.into_iter().flatten().collect();
        let ids = if path.is_empty() { self.at_task()? } else { self.at(path)? };
        let docs = match path.is_empty() || ids.is_empty() {
            true => Vec::new(),
            false => self.call.store.params_of_tasks(&ids).await?,
        };
        asked.extend(docs.iter().filter_map(|doc| doc.get("hyperparams")));
        let most = self.call.people.register().most_priority(&self.who().user);
        if let Some(most) = most.filter(|most| asked.iter().any(|params| asks_for(params, *most))) {
            let (what, name) = (self.endpoint, &self.who().name);
            let text = format!(
                "Forbidden ({what}: {name} may give a task a priority of at most {most}; ask an administrator)"
            );
            return Err(ApiError::new(403, 0, text));
        }
        let outbids = asked.iter().any(|params| asks_for(params, 0) || is_never_stopped(params));
        if !outbids || self.who().may_everywhere(Right::Serve) {
            return Ok(());
        }
        let mut projects: Vec<Option<String>> = Vec::new();
        if !ids.is_empty() {
            projects.extend(self.call.store.owned_tasks(&ids).await?.into_iter().map(|task| task.project));
        }
        for path in ["project", "task.project"] {
            for id in self.at(path).unwrap_or_default() {
                // One that is not found needs the right everywhere.
                projects.push(self.call.store.project(&id).await.ok().map(|project| project.name));
            }
        }
        if projects.is_empty() {
            projects.push(None);
        }
        let what = format!("{} with a priority above 0 or non_preemptible", self.endpoint);
        for project in &projects {
            if !self.who().may(Right::Manage, project.as_deref()) {
                return Err(ApiError::forbidden(self.who(), Right::Manage, &what, project.as_deref()));
            }
        }
        Ok(())
    }

    /// The task that a change of parameters is about, if the request names one.
    fn at_task(&self) -> Result<Vec<String>, ApiError> {
        if self.body.get("task").is_some_and(Value::is_string) { self.at("task") } else { Ok(Vec::new()) }
    }

    fn node(&self, path: &str) -> Result<(), ApiError> {
        let who = self.who();
        for named in self.at(path)? {
            let is_own = who.node.as_deref().is_some_and(|node| is_of_node(&named, node));
            if !is_own {
                let own = who.node.as_deref().unwrap_or("none");
                let text = format!(
                    "Forbidden ({}: {} acts for node {own}, not for {named}; ask an administrator for a service account of it)",
                    self.endpoint, who.name
                );
                return Err(ApiError::new(403, 0, text));
            }
        }
        Ok(())
    }
}

/// Whether a caller may do this to a task or a model; `missing` is the answer if it may not even see it.
pub(super) fn may(
    who: &Principal,
    act: Act,
    what: &Owned,
    endpoint: &str,
    missing: ApiError,
) -> Result<(), ApiError> {
    let project = what.project.as_deref();
    let is_own = what.owner == who.user || act != Act::Enter && holds(who, what);
    if !is_own && !who.may(Right::See, project) {
        return Err(missing);
    }
    if !matches!(act, Act::See | Act::Read) && !who.may_touch(what) {
        return Err(ApiError::not_of_a_task(who, &format!("{endpoint} of {}", what.id)));
    }
    let (right, own_is_enough) = match act {
        Act::See => return Ok(()),
        Act::Read => (Right::Read, true),
        // An agent gives back what it took; the maker needs to be let in still.
        Act::Run if is_own && !who.may_everywhere(Right::Serve) => (Right::Submit, false),
        Act::Change | Act::Run | Act::Enter => (Right::Manage, true),
        Act::Outbid => (Right::Manage, false),
    };
    if (is_own && own_is_enough) || who.may(right, project) {
        return Ok(());
    }
    Err(ApiError::forbidden(who, right, endpoint, project))
}

/// The node itself, or one of its workers: stock agents add what they serve.
pub(crate) fn is_of_node(named: &str, node: &str) -> bool {
    named.strip_prefix(node).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Whether an agent has the task: it waits for one, or runs on its node, or was just taken.
fn holds(who: &Principal, task: &Owned) -> bool {
    let (Some(node), Some(status)) = (&who.node, task.status) else { return false };
    who.may_everywhere(Right::Serve)
        && match &task.held_by {
            _ if status == TaskStatus::Queued => true,
            Some(holder) => is_of_node(holder, node),
            None => status == TaskStatus::InProgress,
        }
}

/// Whether parameters request a higher priority than this. An unreadable priority counts as higher: an agent would refuse
/// it anyway.
fn asks_for(params: &Value, most: u32) -> bool {
    let is_higher = |text: &str| text.parse::<i64>().map_or(true, |priority| priority > i64::from(most));
    texts_of(params, "priority").iter().any(|text| is_higher(text))
}

/// Whether parameters ask that the task is never stopped for others.
fn is_never_stopped(params: &Value) -> bool {
    texts_of(params, "non_preemptible").iter().any(|text| *text != "false")
}

/// The value of this member of a request in its parameters, in either of ClearML's two forms; an empty value counts as
/// absent.
fn texts_of<'a>(params: &'a Value, wanted: &str) -> Vec<&'a str> {
    let values: Vec<&Value> = match params {
        Value::Object(sections) => {
            let section = sections.get(SECTION).and_then(Value::as_object);
            section.and_then(|section| section.get(wanted)?.get("value")).into_iter().collect()
        }
        Value::Array(list) => {
            let is_it = |param: &&Value| {
                let text = |field: &str| param.get(field).and_then(Value::as_str);
                text("section") == Some(SECTION) && text("name") == Some(wanted)
            };
            list.iter().filter(is_it).filter_map(|param| param.get("value")).collect()
        }
        _ => Vec::new(),
    };
    let texts = values.into_iter().map(|value| value.as_str().unwrap_or("?").trim());
    texts.filter(|text| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_goes_before_others() {
        let map = |name: &str, value: &str| json!({ SECTION: { name: { "value": value } } });
        let list = |name: &str, value: &str| json!([{ "section": SECTION, "name": name, "value": value }]);
        for form in [map, list] as [fn(&str, &str) -> Value; 2] {
            for (name, value, expected) in [
                ("priority", "0", false),
                ("priority", " -3 ", false),
                ("priority", "1", true),
                ("priority", "1e9", true),
                ("priority", "", false),
                ("non_preemptible", "true", true),
                ("non_preemptible", "false", false),
                ("memory", "16Gi", false),
            ] {
                let form = form(name, value);
                assert_eq!(asks_for(&form, 0) || is_never_stopped(&form), expected, "{name}={value}");
                assert_eq!(asks_for(&form, 7), value == "1e9", "{name}={value}");
            }
        }
        assert!(!asks_for(&json!({ "General": { "priority": { "value": "9" } } }), 0));
    }

    #[test]
    fn a_node_and_its_workers() {
        assert!(is_of_node("n1", "n1") && is_of_node("n1:gpu0", "n1"));
        assert!(!is_of_node("n10", "n1") && !is_of_node("n", "n1") && !is_of_node("", "n1"));
    }
}
