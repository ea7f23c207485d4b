//! The configuration of queues and pods, in the format of ClearML's charts.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::files;
use super::pod_request::{WEIGHT_LABEL, weight_milli};
use super::template::{merge, unknown_key, wrong_text};

/// ClearML's own default.
const DEFAULT_IMAGE: &str = "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu20.04";

/// The errors in such a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueFileError {
    /// Not YAML, or with unknown keys.
    #[error("{0}")]
    Form(String),
    /// A key of a template.
    #[error("{place}: {key} is no key of a pod template; there are {known}")]
    Key {
        /// The template's queue.
        place: String,
        /// As given.
        key: String,
        /// The known keys.
        known: String,
    },
    /// A label that is no text.
    #[error("{place}: {what} is not text; put it in quotes")]
    Text {
        /// The template's queue.
        place: String,
        /// The entry.
        what: String,
    },
    /// Files that cannot be brought along.
    #[error("{place}: {what}")]
    Files {
        /// The template's queue.
        place: String,
        /// The entry, and a correct one.
        what: String,
    },
    /// A weight that is none.
    #[error("{place}: label {WEIGHT_LABEL} \"{given}\" is no number of GPUs; write something like \"0.5\"")]
    Weight {
        /// The template's queue.
        place: String,
        /// As given.
        given: String,
    },
    /// Nothing to serve.
    #[error("no queue: name some under agentk8sglue.queue or agentk8sglue.queues")]
    NoQueue,
    /// Twice the same.
    #[error("agentk8sglue.queue names {0} twice")]
    Twice(String),
}

/// The whole file; other parts of ClearML's values are ignored.
#[derive(Deserialize)]
struct File {
    agentk8sglue: Glue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Glue {
    #[serde(default, deserialize_with = "names")]
    queue: Vec<String>,
    #[serde(default, alias = "createQueues")]
    create_queue_if_not_exists: bool,
    default_container_image: Option<String>,
    api_server_url_reference: Option<String>,
    file_server_url_reference: Option<String>,
    web_server_url_reference: Option<String>,
    #[serde(default)]
    base_pod_template: Map<String, Value>,
    #[serde(default)]
    queues: BTreeMap<String, QueueValues>,
    // Of ClearML's own agent, which does not run here.
    image: Option<IgnoredAny>,
    replica_count: Option<IgnoredAny>,
    resources: Option<IgnoredAny>,
    init_containers: Option<IgnoredAny>,
    service_account_annotations: Option<IgnoredAny>,
    service_existing_account_name: Option<IgnoredAny>,
    clearmlcheck_certificate: Option<IgnoredAny>,
    labels: Option<IgnoredAny>,
    annotations: Option<IgnoredAny>,
    extra_envs: Option<IgnoredAny>,
    pod_security_context: Option<IgnoredAny>,
    container_security_context: Option<IgnoredAny>,
    additional_cluster_role_bindings: Option<IgnoredAny>,
    additional_role_bindings: Option<IgnoredAny>,
    node_selector: Option<IgnoredAny>,
    tolerations: Option<IgnoredAny>,
    affinity: Option<IgnoredAny>,
    volumes: Option<IgnoredAny>,
    volume_mounts: Option<IgnoredAny>,
    file_mounts: Option<IgnoredAny>,
}

impl Glue {
    /// Keys that are there and change nothing.
    fn without_effect(&self) -> Vec<&'static str> {
        let all = [
            ("image", self.image.is_some()),
            ("replicaCount", self.replica_count.is_some()),
            ("resources", self.resources.is_some()),
            ("initContainers", self.init_containers.is_some()),
            ("serviceAccountAnnotations", self.service_account_annotations.is_some()),
            ("serviceExistingAccountName", self.service_existing_account_name.is_some()),
            ("clearmlcheckCertificate", self.clearmlcheck_certificate.is_some()),
            ("labels", self.labels.is_some()),
            ("annotations", self.annotations.is_some()),
            ("extraEnvs", self.extra_envs.is_some()),
            ("podSecurityContext", self.pod_security_context.is_some()),
            ("containerSecurityContext", self.container_security_context.is_some()),
            ("additionalClusterRoleBindings", self.additional_cluster_role_bindings.is_some()),
            ("additionalRoleBindings", self.additional_role_bindings.is_some()),
            ("nodeSelector", self.node_selector.is_some()),
            ("tolerations", self.tolerations.is_some()),
            ("affinity", self.affinity.is_some()),
            ("volumes", self.volumes.is_some()),
            ("volumeMounts", self.volume_mounts.is_some()),
            ("fileMounts", self.file_mounts.is_some()),
        ];
        all.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct QueueValues {
    template_overrides: Map<String, Value>,
    queue_settings: QueueSettings,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct QueueSettings {
    max_pods: Option<usize>,
}

/// One queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueConfig {
    /// Its name.
    pub name: String,
    /// Limit of its pods that are there at once.
    pub max_pods: Option<usize>,
    /// The base template with this queue's overrides in it.
    pub template: Map<String, Value>,
}

/// The parsed file.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueFile {
    /// The first one goes first.
    pub queues: Vec<QueueConfig>,
    /// Make the ones that the server lacks.
    pub create: bool,
    /// For tasks that name none.
    pub image: String,
    /// Keys of ClearML's file that change nothing here: they are about its own agent.
    pub without_effect: Vec<&'static str>,
    /// Environment variable → address of a server, for the tasks.
    pub servers: BTreeMap<&'static str, String>,
}

impl QueueFile {
    /// Reads such a file.
    ///
    /// # Errors
    /// Says what is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, QueueFileError> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| form(&error))?;
        let mut glue = file.agentk8sglue;
        let without_effect = glue.without_effect();
        check("agentk8sglue.basePodTemplate", &glue.base_pod_template)?;
        let mut seen = BTreeSet::new();
        if let Some(twice) = glue.queue.iter().find(|name| !seen.insert((*name).clone())) {
            return Err(QueueFileError::Twice(twice.clone()));
        }
        let others = glue.queues.keys().filter(|name| !seen.contains(*name)).cloned();
        let order: Vec<String> = glue.queue.iter().cloned().chain(others).collect();
        if order.is_empty() {
            return Err(QueueFileError::NoQueue);
        }
        let mut queues = Vec::new();
        for name in order {
            let values = glue.queues.remove(&name).unwrap_or_default();
            check(&format!("agentk8sglue.queues.{name}.templateOverrides"), &values.template_overrides)?;
            let mut template = glue.base_pod_template.clone();
            merge(&mut template, values.template_overrides);
            files::expand(&mut template)
                .map_err(|what| QueueFileError::Files { place: format!("queue {name}"), what })?;
            queues.push(QueueConfig { name, max_pods: values.queue_settings.max_pods, template });
        }
        let servers = [
            ("CLEARML_API_HOST", glue.api_server_url_reference),
            ("CLEARML_FILES_HOST", glue.file_server_url_reference),
            ("CLEARML_WEB_HOST", glue.web_server_url_reference),
        ];
        let given =
            |(name, url): (&'static str, Option<String>)| Some((name, url.filter(|url| !url.is_empty())?));
        Ok(Self {
            queues,
            create: glue.create_queue_if_not_exists,
            without_effect,
            image: glue
                .default_container_image
                .filter(|i| !i.is_empty())
                .unwrap_or_else(|| DEFAULT_IMAGE.into()),
            servers: servers.into_iter().filter_map(given).collect(),
        })
    }
}

/// The first line has the error; the rest is an excerpt of the file.
fn form(error: &dyn std::fmt::Display) -> QueueFileError {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    QueueFileError::Form(line.strip_prefix("error: ").unwrap_or(line).to_owned())
}

fn check(place: &str, template: &Map<String, Value>) -> Result<(), QueueFileError> {
    if let Some((key, known)) = unknown_key(template) {
        return Err(QueueFileError::Key { place: place.to_owned(), key, known });
    }
    if let Some(what) = wrong_text(template) {
        return Err(QueueFileError::Text { place: place.to_owned(), what });
    }
    let weight = template.get("labels").and_then(|labels| labels.get(WEIGHT_LABEL)?.as_str());
    match weight.filter(|text| weight_milli(text).is_none()) {
        Some(given) => Err(QueueFileError::Weight { place: place.to_owned(), given: given.to_owned() }),
        None => Ok(()),
    }
}

/// `a,b`, or a list.
fn names<'de, D: Deserializer<'de>>(given: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        List(Vec<String>),
        Text(String),
    }
    let names = match Names::deserialize(given)? {
        Names::List(names) => names,
        Names::Text(text) => text.split(',').map(str::to_owned).collect(),
    };
    Ok(names.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As ClearML documents it for its fractional GPU injector.
    const DOCUMENTED: &str = r#"
agentk8sglue:
  createQueueIfNotExists: true
  queue: default0500, default0250
  basePodTemplate:
    labels: {team: a}
    env:
      - {name: A, value: base}
      - {name: B, value: base}
  queues:
    default0250:
      templateOverrides:
        labels:
          required-resources: "0.25"
          clearml-injector/fraction: "0.250"
        resources:
          limits:
            nvidia.com/gpu: 2
    default0500:
      templateOverrides:
        labels:
          required-resources: "0.50"
          clearml-injector/fraction: "0.500"
        env:
          - {name: B, value: queue}
      queueSettings:
        maxPods: 10
    another: {}
"#;

    fn says(text: &str) -> String {
        QueueFile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_documented_values() {
        let file = QueueFile::parse(DOCUMENTED).unwrap();
        let names: Vec<_> = file.queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!(names, ["default0500", "default0250", "another"], "in the order of queue, then by name");
        assert_eq!((file.queues[0].max_pods, file.queues[1].max_pods), (Some(10), None));
        assert!(file.create);
        let labels = &file.queues[0].template["labels"];
        assert_eq!(
            labels,
            &json!({"team": "a", "required-resources": "0.50", "clearml-injector/fraction": "0.500"})
        );
        let env = json!([{"name": "A", "value": "base"}, {"name": "B", "value": "queue"}]);
        assert_eq!(file.queues[0].template["env"], env);
        assert_eq!(file.queues[2].template["env"][1]["value"], "base");
    }

    #[test]
    fn what_is_wrong_is_named_in_one_line() {
        let queue = |inner: &str| format!("agentk8sglue:\n  queues:\n    q:\n      {inner}\n");
        for (text, said) in [
            (queue("templateOverides: {}"), "templateOverides"),
            (
                queue("templateOverrides: {label: {}}"),
                "agentk8sglue.queues.q.templateOverrides: label is no key",
            ),
            (
                queue("templateOverrides: {labels: {required-resources: 0.5}}"),
                "labels.required-resources is not text",
            ),
            (
                queue("templateOverrides: {fileMounts: [{name: a}]}"),
                "queue q: fileMounts is a list of entries",
            ),
            (queue("queueSettings: {maxPods: many}"), "line 4 column 32"),
            (queue("queueSettings: {maxPods: -1}"), "line 4 column 32"),
            ("agentk8sglue: {}".to_owned(), "no queue"),
            ("agentk8sglue: {queue: 'a,b,a'}".to_owned(), "names a twice"),
            ("queues: {}".to_owned(), "agentk8sglue"),
            ("agentk8sglue: [".to_owned(), ""),
        ] {
            let told = says(&text);
            assert!(told.contains(said) && !told.contains('\n'), "{text}: {told}");
        }
    }

    /// The keys of ClearML's own agent chart.
    #[test]
    fn what_is_about_clearmls_agent_is_taken_and_named() {
        let text = "agentk8sglue: {queue: default, image: {tag: '1'}, replicaCount: 1, clearmlcheckCertificate: true, \
                    labels: {}, volumes: [], basePodTemplate: {schedulerName: '', resources: {}, hostAliases: []}}";
        let file = QueueFile::parse(text).unwrap();
        assert_eq!(file.queues[0].name, "default");
        let named = ["image", "replicaCount", "clearmlcheckCertificate", "labels", "volumes"];
        assert_eq!(file.without_effect, named);
        assert!(says("agentk8sglue: {queue: a, replicas: 1}").contains("replicas"), "an unknown key");
    }

    /// ClearML's page has two queues one step too far to the right, below another queue's keys.
    #[test]
    fn a_queue_below_a_queue_is_refused() {
        let text =
            "agentk8sglue:\n  queues:\n    default:\n      default025:\n        templateOverrides: {}\n";
        assert!(says(text).contains("default025"), "{}", says(text));
    }
}
