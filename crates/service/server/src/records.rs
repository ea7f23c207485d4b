//! The store as handlers see it: what is about one task or one model is reached with the proof that the caller may do this to
//! it (`rights::Allowed`), and a list with what the caller may see (`rights::Sight`). Each method here hides the store's method of
//! the same name, which takes an id, or lists everything.

use std::ops::Deref;
use std::sync::Arc;

use cantle_model::{Slice, TaskStatus, TimeLimit};
use cantle_store::{
    Change, ChangedLimit, EventRow, LatestScalar, LogLine, ModelRow, NamedRun, ParentTask, ProjectRow,
    ReportRow, RunRow, Scalar, Store, StoreError, TaskClaim, TaskEdit, TaskFilter, TaskIndex, TaskRow,
    WithParams,
};
use serde_json::{Map, Value};

use crate::app::App;
use crate::rights::act::{Change as Changes, Outbid, Reads, Run, Sees};
use crate::rights::object::{Model, Reporter, Task};
use crate::rights::{Allowed, Sight};

type Done<T> = Result<T, StoreError>;

/// The store, but for the methods that take the id of a task or a model.
#[derive(Clone, Debug)]
pub(crate) struct Records(Arc<App>);

impl Records {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self(app)
    }

    fn store(&self) -> &Store {
        &self.0.store
    }
}

impl Deref for Records {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store()
    }
}

/// Lists.
impl Records {
    pub(crate) async fn tasks(&self, seen: &Sight, filter: TaskFilter) -> Done<Vec<TaskRow>> {
        self.store().tasks(&seen.of(filter)).await
    }

    pub(crate) async fn task_index(&self, seen: &Sight, filter: TaskFilter) -> Done<Vec<TaskIndex>> {
        self.store().task_index(&seen.of(filter)).await
    }

    pub(crate) async fn task_ids(&self, seen: &Sight, filter: TaskFilter) -> Done<Vec<String>> {
        self.store().task_ids(&seen.of(filter)).await
    }

    /// The waiting and running tasks; `None`: all of them.
    pub(crate) async fn active_seen(&self, seen: &Sight) -> Done<Option<Vec<String>>> {
        match seen.scope() {
            None => Ok(None),
            Some(scope) => self.store().active_seen(scope).await.map(Some),
        }
    }

    pub(crate) async fn parents_of(&self, seen: &Sight, projects: &[String]) -> Done<Vec<ParentTask>> {
        self.store().parents_of(projects, seen.scope()).await
    }

    pub(crate) async fn models_seen(
        &self,
        seen: &Sight,
        ids: &[String],
        tasks: &[String],
    ) -> Done<Vec<ModelRow>> {
        self.store().models_seen(ids, tasks, seen.scope()).await
    }

    pub(crate) async fn model_sizes_seen(
        &self,
        seen: &Sight,
        ids: &[String],
        tasks: &[String],
    ) -> Done<Vec<(String, usize)>> {
        self.store().model_sizes_seen(ids, tasks, seen.scope()).await
    }

    pub(crate) async fn projects(&self, seen: &Sight) -> Done<Vec<ProjectRow>> {
        self.store().projects_seen(seen.scope()).await
    }

    /// Those of one task, or of all.
    pub(crate) async fn events(
        &self,
        seen: &Sight,
        task: Option<&str>,
        after: Option<i64>,
        limit: i64,
    ) -> Done<Vec<EventRow>> {
        self.store().events_seen(task, after, limit, seen.scope()).await
    }
}

/// Tasks.
impl Records {
    pub(crate) async fn task(&self, task: &Allowed<Task, impl Sees>) -> Done<TaskRow> {
        self.store().task(task.id()).await
    }

    pub(crate) async fn runs(&self, task: &Allowed<Task, impl Sees>) -> Done<Vec<RunRow>> {
        self.store().runs(task.id()).await
    }

    pub(crate) async fn live_elements(&self, array: &Allowed<Task, impl Sees>) -> Done<Vec<String>> {
        self.store().live_elements(array.id()).await
    }

    pub(crate) async fn edit_task(
        &self,
        task: &Allowed<Task, Changes>,
        edit: &TaskEdit,
        drafts_only: bool,
        now_us: i64,
    ) -> Done<()> {
        self.store().edit_task(task.id(), edit, drafts_only, now_us).await
    }

    pub(crate) async fn update_task_doc(
        &self,
        task: &Allowed<Task, Changes>,
        now_us: i64,
        change: impl FnOnce(&mut Map<String, Value>) + Send,
    ) -> Done<()> {
        self.store().update_task_doc(task.id(), now_us, change).await
    }

    pub(crate) async fn ping_task(&self, task: &Allowed<Task, Changes>, now_us: i64) -> Done<()> {
        self.store().ping_task(task.id(), now_us).await
    }

    pub(crate) async fn touch_tasks(
        &self,
        tasks: &[Allowed<Task, Changes>],
        worker: &str,
        now_us: i64,
    ) -> Done<()> {
        self.store().touch_tasks(&ids(tasks), worker, now_us).await
    }

    pub(crate) async fn set_status(
        &self,
        task: &Allowed<Task, Changes>,
        to: TaskStatus,
        change: &Change,
    ) -> Done<TaskStatus> {
        self.store().set_status(task.id(), to, change).await
    }

    pub(crate) async fn ask_to_stop(&self, task: &Allowed<Task, Changes>, change: &Change) -> Done<()> {
        self.store().ask_to_stop(task.id(), change).await
    }

    pub(crate) async fn end_many(
        &self,
        runs: Vec<(Allowed<Task, Changes>, i64)>,
        to: TaskStatus,
        change: &Change,
    ) -> Done<()> {
        let named = |(task, run): (Allowed<Task, Changes>, _)| NamedRun { task: task.id().to_owned(), run };
        let runs: Vec<NamedRun> = runs.into_iter().map(named).collect();
        self.store().end_many(&runs, to, change).await
    }

    pub(crate) async fn reset(
        &self,
        task: &Allowed<Task, Changes>,
        change: &Change,
        forget: impl FnOnce(&mut Map<String, Value>) + Send,
    ) -> Done<()> {
        self.store().reset(task.id(), change, forget).await
    }

    pub(crate) async fn delete_task(&self, task: &Allowed<Task, Changes>, change: &Change) -> Done<u64> {
        self.store().delete_task(task.id(), change).await
    }

    /// `claim` is about this task.
    pub(crate) async fn claim(
        &self,
        task: &Allowed<Task, Changes>,
        claim: TaskClaim,
        now_us: i64,
    ) -> Done<()> {
        let claim = TaskClaim { task: task.id().to_owned(), ..claim };
        self.store().claim(&claim, now_us).await
    }

    /// It holds these slices from now on.
    pub(crate) async fn change_slices(
        &self,
        task: &Allowed<Task, Changes>,
        lease: &str,
        slices: &[Slice],
        now_us: i64,
    ) -> Done<()> {
        self.store().change_slices(task.id(), lease, slices, now_us).await
    }

    /// It cannot be suspended, so it stops for another one.
    pub(crate) async fn stop_evicted(
        &self,
        task: &Allowed<Task, Changes>,
        lease: &str,
        change: &Change,
    ) -> Done<()> {
        self.store().stop_evicted(task.id(), lease, change).await
    }

    /// Lets it run, or be idle, longer.
    pub(crate) async fn extend(
        &self,
        task: &Allowed<Task, Outbid>,
        which: ChangedLimit,
        change: &Change,
        to: impl FnOnce(TimeLimit) -> Option<TimeLimit> + Send,
    ) -> Done<TimeLimit> {
        self.store().change_time(task.id(), which, change, to).await
    }

    /// Takes time from it.
    pub(crate) async fn shorten(
        &self,
        task: &Allowed<Task, Changes>,
        which: ChangedLimit,
        change: &Change,
        to: impl FnOnce(TimeLimit) -> Option<TimeLimit> + Send,
    ) -> Done<TimeLimit> {
        self.store().change_time(task.id(), which, change, to).await
    }

    pub(crate) async fn give_back(
        &self,
        task: &Allowed<Task, Changes>,
        lease: &str,
        change: &Change,
    ) -> Done<bool> {
        self.store().give_back(task.id(), lease, change).await
    }

    pub(crate) async fn end_fenced(
        &self,
        task: &Allowed<Task, Changes>,
        lease: &str,
        now_us: i64,
    ) -> Done<Option<String>> {
        self.store().end_fenced(task.id(), lease, now_us).await
    }
}

/// Places in queues.
impl Records {
    pub(crate) async fn enqueue(&self, task: &Allowed<Task, Run>, queue: &str, change: &Change) -> Done<()> {
        self.store().enqueue(task.id(), queue, change).await
    }

    pub(crate) async fn tasks_with_params(&self, tasks: &[Allowed<Task, Run>]) -> Done<Vec<WithParams>> {
        self.store().tasks_with_params(&ids(tasks)).await
    }

    pub(crate) async fn enqueue_many(
        &self,
        tasks: &[Allowed<Task, Run>],
        queue: &str,
        change: &Change,
    ) -> Done<()> {
        self.store().enqueue_many(&ids(tasks), queue, change).await
    }

    pub(crate) async fn dequeue(
        &self,
        task: &Allowed<Task, Changes>,
        queue: Option<&str>,
        to: TaskStatus,
        change: &Change,
    ) -> Done<bool> {
        self.store().dequeue(task.id(), queue, to, change).await
    }

    /// Moves a task towards the back, or to it.
    pub(crate) async fn move_back(
        &self,
        queue: &str,
        task: &Allowed<Task, Changes>,
        by: Option<usize>,
    ) -> Done<usize> {
        let place = |from: usize, _| by.map_or(usize::MAX, |by| from.saturating_add(by));
        self.store().move_in_queue(queue, task.id(), place).await
    }

    /// Moves a task towards the front, or to it, before the tasks of others.
    pub(crate) async fn move_forward(
        &self,
        queue: &str,
        task: &Allowed<Task, Outbid>,
        by: Option<usize>,
    ) -> Done<usize> {
        let place = |from: usize, _| by.map_or(0, |by| from.saturating_sub(by));
        self.store().move_in_queue(queue, task.id(), place).await
    }
}

/// Output.
impl Records {
    pub(crate) async fn is_former_output(
        &self,
        task: &Allowed<Task, impl Reads>,
        run: i64,
        newest: i64,
    ) -> Done<bool> {
        self.store().is_former_output(task.id(), run, newest).await
    }

    pub(crate) async fn logs_after(
        &self,
        of: &Allowed<Reporter, impl Reads>,
        after: i64,
        limit: i64,
    ) -> Done<Vec<LogLine>> {
        self.store().logs_after(of.id(), after, limit).await
    }

    pub(crate) async fn logs_by_time(
        &self,
        of: &Allowed<Reporter, impl Reads>,
        from_ms: Option<i64>,
        earlier: bool,
        limit: i64,
    ) -> Done<Vec<LogLine>> {
        self.store().logs_by_time(of.id(), from_ms, earlier, limit).await
    }

    pub(crate) async fn count_logs(&self, of: &Allowed<Reporter, impl Reads>) -> Done<i64> {
        self.store().count_logs(of.id()).await
    }

    pub(crate) async fn scalars(&self, of: &Allowed<Reporter, impl Reads>) -> Done<Vec<Scalar>> {
        self.store().scalars(of.id()).await
    }

    pub(crate) async fn scalar_page(
        &self,
        of: &Allowed<Task, impl Reads>,
        after: Option<(String, String, i64)>,
        limit: i64,
    ) -> Done<Vec<Scalar>> {
        self.store().scalar_page(of.id(), after, limit).await
    }

    pub(crate) async fn count_scalars(&self, of: &Allowed<Task, impl Reads>) -> Done<i64> {
        self.store().count_scalars(of.id()).await
    }

    pub(crate) async fn latest_scalars(&self, of: &Allowed<Reporter, impl Reads>) -> Done<Vec<LatestScalar>> {
        self.store().latest_scalars(of.id()).await
    }

    pub(crate) async fn reports(
        &self,
        of: &Allowed<Reporter, impl Reads>,
        kind: &str,
    ) -> Done<Vec<ReportRow>> {
        self.store().reports(of.id(), kind).await
    }

    pub(crate) async fn delete_logs(
        &self,
        task: &Allowed<Task, Changes>,
        before_ms: Option<i64>,
    ) -> Done<u64> {
        self.store().delete_logs(task.id(), before_ms).await
    }

    pub(crate) async fn delete_task_reports(&self, task: &Allowed<Task, Changes>) -> Done<()> {
        self.store().delete_task_reports(task.id()).await
    }

    pub(crate) async fn delete_model_reports(&self, model: &Allowed<Model, Changes>) -> Done<()> {
        self.store().delete_model_reports(model.id()).await
    }
}

/// Models.
impl Records {
    pub(crate) async fn model(&self, model: &Allowed<Model, impl Sees>) -> Done<ModelRow> {
        self.store().model(model.id()).await
    }

    /// The models with these ids, of these tasks; an empty list is no condition, so one of them has something in it.
    pub(crate) async fn models(
        &self,
        models: &[Allowed<Model, impl Sees>],
        tasks: &[Allowed<Task, impl Sees>],
    ) -> Done<Vec<ModelRow>> {
        if models.is_empty() && tasks.is_empty() {
            return Ok(Vec::new());
        }
        self.store().models(&ids(models), &ids(tasks)).await
    }

    pub(crate) async fn create_model(&self, new: &ModelRow, of: Option<&Allowed<Task, Changes>>) -> Done<()> {
        let task = of.map(|task| task.id().to_owned());
        self.store().create_model(&ModelRow { task, ..new.clone() }).await
    }

    pub(crate) async fn update_model(
        &self,
        model: &Allowed<Model, Changes>,
        name: Option<&str>,
        project: Option<&str>,
        of: Option<&Allowed<Task, Changes>>,
        doc: Map<String, Value>,
        now_us: i64,
    ) -> Done<()> {
        self.store().update_model(model.id(), name, project, of.map(Allowed::id), doc, now_us).await
    }

    pub(crate) async fn delete_model(&self, model: &Allowed<Model, Changes>) -> Done<()> {
        self.store().delete_model(model.id()).await
    }
}

fn ids<O, A>(objects: &[Allowed<O, A>]) -> Vec<String> {
    objects.iter().map(|object| object.id().to_owned()).collect()
}
