//! Builds the pod of a task. Pure: the same task gives the same pod.

use std::collections::BTreeMap;

use cantle_clearml::{ArrayElement, TaskRequest, runnable, sdk_command, tasks};
use serde_json::{Map, Value, json};

use super::config::{QueueConfig, QueueFile};
use super::own_request;
use super::template::{merge, parts};

/// The controller that a pod belongs to.
pub const OWNER_LABEL: &str = "cantle.dev/queues";
/// ClearML's label: the task.
pub const TASK_LABEL: &str = "clearml-task-id";
/// ClearML's label: the queue by id.
pub const QUEUE_LABEL: &str = "clearml-agent-queue";
/// The queue by name, which may be no label.
pub const QUEUE_ANNOTATION: &str = "cantle.dev/queue";
/// A pod with it is not scheduled: the controller has not claimed the task yet.
pub const GATE: &str = "cantle.dev/task-not-taken";
/// A pod does not vanish before its task's state is reported.
pub const FINALIZER: &str = "cantle.dev/task-state";
/// The container that the task runs in.
pub const CONTAINER: &str = "task";

/// How tasks reach the server.
#[derive(Debug, Clone)]
pub struct ServerAccess {
    /// Its address.
    pub url: String,
    /// Where the keys for it are.
    pub keys: ServerKeys,
}

/// Where the keys are.
#[derive(Debug, Clone)]
pub enum ServerKeys {
    /// In the pod itself: everyone with read access to pods can read them.
    Plain(cantle_clearml::Credentials),
    /// In a Secret with `access_key` and `secret_key`.
    Secret(String),
}

/// The common data of all pods of a controller.
#[derive(Debug)]
pub struct PodBuilder {
    /// Name of the controller.
    pub owner: String,
    /// The queues, and the templates of their pods.
    pub file: QueueFile,
    /// How tasks reach the server.
    pub access: ServerAccess,
}

/// The name of a task's pod: a second one cannot be made.
pub fn name_of(task: &str) -> String {
    format!("clearml-id-{}", task.to_ascii_lowercase())
}

impl PodBuilder {
    /// The pod of a task, not yet to be scheduled.
    ///
    /// # Errors
    /// If the task cannot run so.
    pub fn pod(&self, task: &tasks::Task, queue: &QueueConfig, queue_id: &str) -> Result<Value, String> {
        let request = runnable(task).map_err(|why| why.to_string())?;
        if let Some(name) = request.secrets.first() {
            return Err(format!(
                "it names the secret {name}, which pods do not get; name a Secret in the queue's template"
            ));
        }
        if let Some(limit) = request.gpu_memory_limit {
            return Err(format!(
                "it has the limit {limit} of GPU memory above its request, which pods do not get"
            ));
        }
        if let Some(idle) = request.idle {
            return Err(format!(
                "it is to end after {idle} without activity, which is not measured in pods; remove its idle time"
            ));
        }
        if request.cpu_auto {
            return Err(
                "it leaves its processors and memory to its node (cpu auto), which pods do not; name cores and memory"
                    .to_owned(),
            );
        }
        let (image, task_env) = image_and_env(&task.container)?;
        let mut template = queue.template.clone();
        own_request::apply(&mut template, &request);
        let mut env = Map::new();
        env.insert("env".to_owned(), Value::Array(self.env(&task.id, request.element.as_ref(), task_env)));
        merge(&mut template, env);
        let (mut metadata, mut spec, mut container) = parts(&template);
        metadata["name"] = json!(name_of(&task.id));
        metadata["finalizers"] = json!([FINALIZER]);
        for (key, value) in
            [(OWNER_LABEL, self.owner.as_str()), (TASK_LABEL, &task.id), (QUEUE_LABEL, queue_id)]
        {
            metadata["labels"][key] = json!(value);
        }
        metadata["annotations"][QUEUE_ANNOTATION] = json!(queue.name);
        container["name"] = json!(CONTAINER);
        container["image"] = json!(image.unwrap_or_else(|| self.file.image.clone()));
        container["command"] = json!(command(task, &request));
        if let Some(cwd) = &request.cwd {
            container["workingDir"] = json!(cwd);
        }
        spec["restartPolicy"] = json!("Never");
        spec["schedulingGates"] = json!([{"name": GATE}]);
        spec["containers"] = json!([container]);
        Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    }

    /// The variables that ClearML's SDK and agent read; then those of the task's own container arguments.
    fn env(&self, task: &str, element: Option<&ArrayElement>, given: BTreeMap<String, String>) -> Vec<Value> {
        let mut env: BTreeMap<String, Value> = BTreeMap::new();
        let mut put = |name: &str, value: &str| {
            drop(env.insert(name.to_owned(), json!({"name": name, "value": value})))
        };
        put("CLEARML_API_HOST", &self.access.url);
        self.file.servers.iter().for_each(|(name, url)| put(name, url));
        put("CLEARML_TASK_ID", task);
        put("CLEARML_WORKER_ID", &self.worker(task));
        element.iter().flat_map(|element| element.environment()).for_each(|(name, value)| put(name, &value));
        given.iter().for_each(|(name, value)| put(name, value));
        for (name, key) in
            [("CLEARML_API_ACCESS_KEY", "access_key"), ("CLEARML_API_SECRET_KEY", "secret_key")]
        {
            let entry = match &self.access.keys {
                ServerKeys::Secret(secret) => {
                    json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
                }
                ServerKeys::Plain(keys) if key == "access_key" => {
                    json!({"name": name, "value": keys.access_key})
                }
                ServerKeys::Plain(keys) => json!({"name": name, "value": keys.secret_key}),
            };
            env.insert(name.to_owned(), entry);
        }
        env.into_values().collect()
    }

    /// As ClearML's glue names its workers.
    pub fn worker(&self, task: &str) -> String {
        format!("{}:{task}", self.owner)
    }
}

/// Of `docker run`'s options those that set a variable mean something for a pod, as in ClearML's glue.
fn image_and_env(container: &tasks::Container) -> Result<(Option<String>, BTreeMap<String, String>), String> {
    let (image, options) = container.image_and_options().map_err(|why| why.to_string())?;
    let mut env = BTreeMap::new();
    let mut words = options.into_iter();
    while let Some(word) = words.next() {
        let setting = match word.as_str() {
            "-e" | "--env" => words.next(),
            word => word.strip_prefix("--env=").map(str::to_owned),
        };
        if let Some((name, value)) = setting.as_deref().and_then(|setting| setting.split_once('=')) {
            env.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok((image, env))
}

/// A plain command runs as it is; code of ClearML's SDK is set up and run by ClearML's own agent.
fn command(task: &tasks::Task, request: &TaskRequest) -> Vec<String> {
    let is_sdk = request.command.is_empty();
    let argv = if is_sdk {
        sdk_command(&task.id, &[]).map(str::to_owned).collect()
    } else {
        request.command.clone()
    };
    task.container.started(argv, is_sdk)
}

#[cfg(test)]
mod tests {
    use cantle_clearml::Credentials;
    use cantle_model::GpuRequest;
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::inject::LABEL;

    const VALUES: &str = r#"
agentk8sglue:
  defaultContainerImage: base:1
  basePodTemplate:
    env: [{name: A, value: base}]
  queues:
    half:
      templateOverrides:
        labels: {clearml-injector/fraction: "0.500", required-resources: "0.5"}
        resources: {limits: {memory: 1Gi, nvidia.com/gpu: "1"}}
"#;

    fn builder(keys: ServerKeys) -> PodBuilder {
        let access = ServerAccess { url: "http://127.0.0.1:8008".to_owned(), keys };
        PodBuilder { owner: "cantle".to_owned(), file: QueueFile::parse(VALUES).unwrap(), access }
    }

    fn secret() -> PodBuilder {
        builder(ServerKeys::Secret("keys".to_owned()))
    }

    fn task(request: &TaskRequest) -> tasks::Task {
        tasks::Task { id: "7F".to_owned(), hyperparams: request.to_hyperparams(), ..tasks::Task::default() }
    }

    fn pod(builder: &PodBuilder, task: &tasks::Task) -> Result<Value, String> {
        builder.pod(task, &builder.file.queues[0], "q1")
    }

    fn request(gpu: Option<GpuRequest>) -> TaskRequest {
        TaskRequest { command: vec!["train".to_owned(), "a b".to_owned()], gpu, ..TaskRequest::default() }
    }

    fn env(pod: &Value) -> BTreeMap<String, Value> {
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        env.iter().map(|each| (each["name"].as_str().unwrap().to_owned(), each.clone())).collect()
    }

    #[test]
    fn a_plain_command_becomes_a_pod_that_nobody_schedules_yet() {
        let pod = pod(&secret(), &task(&request(None))).unwrap();
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(typed.metadata.name.as_deref(), Some("clearml-id-7f"));
        assert_eq!(typed.metadata.labels.unwrap()[LABEL], "0.500");
        let spec = typed.spec.unwrap();
        assert_eq!(spec.scheduling_gates.unwrap()[0].name, GATE);
        let container = &spec.containers[0];
        assert_eq!(container.command.as_deref(), Some(["train".to_owned(), "a b".to_owned()].as_slice()));
        assert_eq!(container.image.as_deref(), Some("base:1"));
        let env = env(&pod);
        assert_eq!(env["A"]["value"], "base");
        assert_eq!(env["CLEARML_TASK_ID"]["value"], "7F");
        assert_eq!(env["CLEARML_API_SECRET_KEY"]["valueFrom"]["secretKeyRef"]["name"], "keys");
    }

    #[test]
    fn keys_without_a_secret_are_in_the_pod() {
        let keys = Credentials { access_key: "A".to_owned(), secret_key: "S".to_owned() };
        let pod = pod(&builder(ServerKeys::Plain(keys)), &task(&request(None))).unwrap();
        assert_eq!(env(&pod)["CLEARML_API_SECRET_KEY"]["value"], "S");
    }

    #[test]
    fn a_tasks_own_container() {
        let mut given = task(&request(None));
        given.container.image = "own:2 -e X=1".to_owned();
        given.container.arguments = "--ipc=host --env 'A=two words' --env=Y=2".to_owned();
        given.container.setup_shell_script = "export Z=1".to_owned();
        let made = pod(&secret(), &given).unwrap();
        let container = &made["spec"]["containers"][0];
        assert_eq!(container["image"], "own:2");
        assert_eq!(
            container["command"],
            json!(["sh", "-c", "export Z=1\nexec \"$@\"", "sh", "train", "a b"])
        );
        let env = env(&made);
        assert_eq!(
            (&env["X"]["value"], &env["A"]["value"], &env["Y"]["value"]),
            (&json!("1"), &json!("two words"), &json!("2"))
        );
        given.container.arguments = "-e 'A".to_owned();
        assert!(pod(&secret(), &given).unwrap_err().contains("not closed"));
    }

    #[test]
    fn code_of_the_sdk_goes_to_clearmls_agent() {
        let script = tasks::Script { entry_point: "train.py".into(), ..tasks::Script::default() };
        let made = pod(&secret(), &tasks::Task { id: "7".into(), script, ..tasks::Task::default() }).unwrap();
        let command = &made["spec"]["containers"][0]["command"];
        assert!(command[2].as_str().unwrap().starts_with("command -v clearml-agent"));
        let argv: Vec<_> = command.as_array().unwrap()[4..].to_vec();
        assert_eq!(json!(argv), json!(["clearml-agent", "execute", "--disable-monitoring", "--id", "7"]));
    }

    #[test]
    fn a_task_that_cannot_run_says_why() {
        let nothing = tasks::Task { id: "7".into(), ..tasks::Task::default() };
        assert!(pod(&secret(), &nothing).unwrap_err().contains("neither a command"));
        let idle = TaskRequest { idle: "2h".parse().ok(), ..request(None) };
        let refused = pod(&secret(), &task(&idle)).unwrap_err();
        let auto = TaskRequest { cpu_auto: true, ..request(None) };
        assert!(pod(&secret(), &task(&auto)).unwrap_err().contains("name cores and memory"));
        assert!(refused.contains("after 2h without activity, which is not measured in pods"), "{refused}");
    }
}
