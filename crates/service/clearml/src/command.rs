//! Stores a plain command and its request for GPUs in a task's parameters, section [`SECTION`].
//!
//! Parameters survive cloning and can be edited wherever ClearML's tasks can be edited.

mod values;

use std::collections::BTreeMap;

use cantle_model::{
    AfterList, ArrayError, ArraySpec, BurstError, Bytes, ComputeError, ComputeRequest, GpuRequest, IdleTime,
    Isolation, Milli, RequestError, TaskTerms, TimeLimit,
};
use serde_json::Value;
use values::{
    after, array, compute_request, element, gpu_request, json_word, memory_limit, names, parsed, quantity,
    text_of, word,
};

use crate::notebook::NotebookProgram;
use crate::shell::shell_words;
use crate::tasks::{HyperParams, Param};

/// cantle's section of a task's parameters.
pub const SECTION: &str = "cantle";

/// A task's request to cantle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskRequest {
    /// Program and arguments; empty for a task whose code is in ClearML's own fields.
    pub command: Vec<String>,
    /// Where to start it.
    pub cwd: Option<String>,
    /// The part of a GPU; the queue decides if absent.
    pub gpu: Option<GpuRequest>,
    /// The most memory of its GPU that it may have where that is free, if that is more than it asks for.
    pub gpu_memory_limit: Option<Bytes>,
    /// How it is isolated from other tasks on the GPU.
    pub isolation: Isolation,
    /// How compute time is divided.
    pub compute: ComputeRequest,
    /// CPU that counts against quotas, in thousandths of a core. It is not enforced.
    pub cpu_milli: u64,
    /// It gets the part of the processors and main memory of its node that it has of the node's GPUs, as its limits.
    pub cpu_auto: bool,
    /// Main memory that counts against quotas, in bytes. It is the limit of a container, and the request of a pod.
    pub memory_bytes: u64,
    /// Tasks of higher priority go first within a project and may preempt others.
    pub priority: i32,
    /// It is never stopped for another task, so it must fit its project's quota.
    pub non_preemptible: bool,
    /// How long it may run; its queue decides if absent.
    pub time: Option<TimeLimit>,
    /// For how long it may be idle; its queue decides if absent.
    pub idle: Option<IdleTime>,
    /// The tasks that end before it starts.
    pub after: AfterList,
    /// The tasks that are made of it instead of running it.
    pub array: Option<ArraySpec>,
    /// Of which array it is a task.
    pub element: Option<ArrayElement>,
    /// The receivers of its owner that get notices of it, by name.
    pub notify: Vec<String>,
    /// The secrets of its owner that are in its environment, by name.
    pub secrets: Vec<String>,
    /// The notebook that it runs, which the server opens in a browser.
    pub notebook: Option<NotebookProgram>,
}

/// The place of a task in an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayElement {
    /// Id of the array.
    pub array: String,
    /// Its index.
    pub index: u64,
}

impl ArrayElement {
    /// The variables that tell a program which one it is.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [("CANTLE_ARRAY_ID", self.array.clone()), ("CANTLE_ARRAY_INDEX", self.index.to_string())]
    }

    /// Makes the parameters of an array those of its task.
    pub fn put_into(&self, params: &mut HyperParams) {
        let section = params.entry(SECTION.to_owned()).or_default();
        ["array", "after", "notify"].iter().for_each(|name| drop(section.remove(*name)));
        for (name, value) in [("array_id", self.array.clone()), ("array_index", self.index.to_string())] {
            section.insert(name.to_owned(), param(name, value));
        }
    }
}

/// The part of a task's request on which the server itself acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedFlow {
    /// How long it may run.
    pub time: Option<TimeLimit>,
    /// For how long it may be idle.
    pub idle: Option<IdleTime>,
    /// The tasks that end before it starts.
    pub after: AfterList,
    /// The tasks that are made of it.
    pub array: Option<ArraySpec>,
    /// The receivers of notices, by name.
    pub notify: Vec<String>,
    /// The secrets, by name.
    pub secrets: Vec<String>,
}

impl TaskRequest {
    /// Reads the request from a task's parameters; `None` if they hold none.
    ///
    /// # Errors
    /// Names the parameter that is wrong: users edit them by hand.
    pub fn from_hyperparams(params: &HyperParams) -> Result<Option<Self>, TaskRequestError> {
        let Some(section) = params.get(SECTION) else {
            return Ok(None);
        };
        let text = text_of(section);
        let command = match text("command") {
            None => Vec::new(),
            Some(json) => {
                serde_json::from_str(json).map_err(|_| TaskRequestError::Command(json.to_owned()))?
            }
        };
        let RequestedFlow { time, idle, after, array, notify, secrets } = Self::flow_of(params)?;
        let gpu = gpu_request(text)?;
        let compute = compute_request(text, gpu.as_ref())?;
        let mut isolation = word("isolation", text("isolation"), "any, mig or shared")?;
        let gpu_memory_limit = memory_limit(text, gpu.as_ref(), isolation)?;
        if gpu_memory_limit.is_some() {
            // An instance cannot grow.
            isolation = Isolation::Shared;
        }
        let cpu_auto = text("cpu") == Some("auto");
        let cpu = text("cpu").filter(|_| !cpu_auto);
        Ok(Some(Self {
            command,
            cwd: text("cwd").map(str::to_owned),
            gpu,
            gpu_memory_limit,
            isolation,
            compute,
            cpu_milli: parsed("cpu", cpu, "a number of cores such as 0.5, or auto", |Milli(n)| n.into())?,
            cpu_auto,
            memory_bytes: parsed("memory", text("memory"), "a quantity such as 16Gi", |Bytes(n)| n)?,
            priority: parsed("priority", text("priority"), "a whole number", |n| n)?,
            non_preemptible: parsed("non_preemptible", text("non_preemptible"), "true or false", |b| b)?,
            time,
            idle,
            after,
            array,
            element: element(text)?,
            notify,
            secrets,
            notebook: Self::notebook_of(params)?,
        }))
    }

    /// Only how long a task with these parameters may run, what it waits for, and whether it is an array: the server has to know that,
    /// whatever else is wrong with the task.
    ///
    /// # Errors
    /// Names the parameter that is wrong.
    pub fn flow_of(params: &HyperParams) -> Result<RequestedFlow, TaskRequestError> {
        let none = BTreeMap::new();
        let text = text_of(params.get(SECTION).unwrap_or(&none));
        let time = parsed("time", text("time"), "a run time such as 2h or 1h30m", Some)?;
        let idle = parsed("idle", text("idle"), "an idle time such as 2h, at least 1m", Some)?;
        let (after, array) = (after(text)?, array(text)?);
        let (notify, secrets) = (names(text("notify")), names(text("secret")));
        Ok(RequestedFlow { time, idle, after, array, notify, secrets })
    }

    /// Only the notebook that a task with these parameters runs.
    ///
    /// # Errors
    /// Names the parameter if it is wrong.
    pub fn notebook_of(params: &HyperParams) -> Result<Option<NotebookProgram>, TaskRequestError> {
        let none = BTreeMap::new();
        let text = text_of(params.get(SECTION).unwrap_or(&none));
        parsed("notebook", text("notebook"), NotebookProgram::WORDS, Some)
    }

    /// The parameters that carry this request in a task.
    #[must_use]
    pub fn to_hyperparams(&self) -> HyperParams {
        let mut section = BTreeMap::new();
        let mut put = |name: &str, value: String| {
            section.insert(name.to_owned(), param(name, value));
        };
        if !self.command.is_empty() {
            put("command", Value::from(self.command.clone()).to_string());
        }
        let optional = [
            ("cwd", self.cwd.clone()),
            ("compute_request", self.compute.request.map(|part| part.to_string())),
            ("compute_limit", self.compute.limit.map(|part| part.to_string())),
            ("time", self.time.map(|time| time.to_string())),
            ("idle", self.idle.map(|idle| idle.to_string())),
            ("array", self.array.as_ref().map(ToString::to_string)),
            ("notebook", self.notebook.map(|program| program.to_string())),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                put(name, value);
            }
        }
        match &self.gpu {
            None => {}
            Some(GpuRequest::Fraction(milli)) => put("gpu", milli.to_string()),
            Some(GpuRequest::Gpus(n)) => put("gpus", n.to_string()),
            Some(GpuRequest::Memory(bytes)) => put("gpu_memory", quantity(*bytes)),
            Some(GpuRequest::MigProfile(profile)) => put("mig_profile", profile.clone()),
        }
        if let Some(limit) = self.gpu_memory_limit {
            put("gpu_memory_limit", quantity(limit));
        }
        if self.isolation != Isolation::default() {
            put("isolation", json_word(&self.isolation));
        }
        if self.compute.is_enforced() {
            put("compute", self.compute.mode.to_string());
        }
        match u32::try_from(self.cpu_milli) {
            _ if self.cpu_auto => put("cpu", "auto".to_owned()),
            Ok(cpu @ 1..) => put("cpu", Milli(cpu).to_string()),
            _ => {}
        }
        if self.memory_bytes > 0 {
            put("memory", quantity(Bytes(self.memory_bytes)));
        }
        if self.priority != 0 {
            put("priority", self.priority.to_string());
        }
        if self.non_preemptible {
            put("non_preemptible", "true".to_owned());
        }
        if !self.after.0.is_empty() {
            put("after", self.after.to_string());
        }
        if !self.notify.is_empty() {
            put("notify", self.notify.join(","));
        }
        if !self.secrets.is_empty() {
            put("secret", self.secrets.join(","));
        }
        if let Some(ArrayElement { array, index }) = &self.element {
            put("array_id", array.clone());
            put("array_index", index.to_string());
        }
        HyperParams::from([(SECTION.to_owned(), section)])
    }

    /// The part of it that counts under quotas.
    #[must_use]
    pub const fn terms(&self) -> TaskTerms {
        TaskTerms {
            cpu_milli: self.cpu_milli,
            memory_bytes: self.memory_bytes,
            priority: self.priority,
            preemptible: !self.non_preemptible,
        }
    }

    /// The command as one types it into a shell.
    #[must_use]
    pub fn shell_command(&self) -> String {
        shell_words(&self.command)
    }
}

fn param(name: &str, value: String) -> Param {
    Param { section: SECTION.to_owned(), name: name.to_owned(), value, ..Param::default() }
}

/// Why a task's parameters are not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskRequestError {
    /// `command` has the wrong form.
    #[error(
        "parameter cantle/command is {0}; write a JSON array of words, for example [\"python3\", \"train.py\"]"
    )]
    Command(String),
    /// An amount is wrong.
    #[error("parameter cantle/{name}: {source}")]
    Gpu {
        /// Which.
        name: &'static str,
        /// How.
        source: RequestError,
    },
    /// The array is none.
    #[error("parameter cantle/array: {0}")]
    Array(ArrayError),
    /// The request for compute is wrong.
    #[error("parameters of section cantle: {0}")]
    Compute(#[from] ComputeError),
    /// The limit of GPU memory is none.
    #[error("parameter cantle/gpu_memory_limit: {0}")]
    Burst(#[from] BurstError),
    /// More than one amount.
    #[error(
        "parameters of section cantle ask for GPU in several ways; keep one of gpu, gpus, gpu_memory, mig_profile"
    )]
    Several,
    /// Not one of the legal values.
    #[error("parameter cantle/{name} is \"{given}\"; write {legal}")]
    Word {
        /// Which.
        name: &'static str,
        /// Its value.
        given: String,
        /// The legal values.
        legal: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(request: &TaskRequest) {
        let params = request.to_hyperparams();
        assert_eq!(TaskRequest::from_hyperparams(&params), Ok(Some(request.clone())));
    }

    #[test]
    fn the_part_of_a_node_is_a_word_in_place_of_a_number() {
        let auto = TaskRequest { cpu_auto: true, memory_bytes: 8 << 30, ..TaskRequest::default() };
        round_trip(&auto);
        let mut params = auto.to_hyperparams();
        let cpu = params.get_mut(SECTION).unwrap().get_mut("cpu").unwrap();
        assert_eq!(cpu.value, "auto");
        cpu.value = "all".to_owned();
        let error = TaskRequest::from_hyperparams(&params).unwrap_err().to_string();
        assert_eq!(error, "parameter cantle/cpu is \"all\"; write a number of cores such as 0.5, or auto");
    }

    #[test]
    fn the_task_of_an_array_is_none_itself() {
        let after = "ok:a".parse().unwrap();
        let array = TaskRequest { array: Some("0-9".parse().unwrap()), after, ..TaskRequest::default() };
        let mut params = array.to_hyperparams();
        let element = ArrayElement { array: "id".to_owned(), index: 3 };
        element.put_into(&mut params);
        let found = TaskRequest::from_hyperparams(&params).unwrap().unwrap();
        assert_eq!(found, TaskRequest { element: Some(element.clone()), ..TaskRequest::default() });
        let env = [("CANTLE_ARRAY_ID", "id".to_owned()), ("CANTLE_ARRAY_INDEX", "3".to_owned())];
        assert_eq!(element.environment(), env);
    }

    #[test]
    fn requests_survive_the_parameters() {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "echo 'a b' \"ü\"\n".to_owned()];
        for gpu in [
            None,
            Some(GpuRequest::Fraction(cantle_model::Milli(125).into())),
            Some(GpuRequest::Gpus(2)),
            Some(GpuRequest::Memory(Bytes(4_000_000_000))),
            Some(GpuRequest::Memory(Bytes(4 << 30))),
            Some(GpuRequest::Memory(Bytes(12_345_678_901))),
            Some(GpuRequest::MigProfile("2g.10gb".into())),
        ] {
            // Compute shares exist on a part of one GPU only.
            let mode = match gpu {
                Some(GpuRequest::Fraction(_) | GpuRequest::Memory(_)) => cantle_model::ComputeMode::Strict,
                _ => cantle_model::ComputeMode::Even,
            };
            round_trip(&TaskRequest {
                command: command.clone(),
                cwd: Some("/data".into()),
                gpu,
                gpu_memory_limit: None,
                isolation: Isolation::Mig,
                compute: ComputeRequest { mode, ..ComputeRequest::default() },
                cpu_milli: 1500,
                cpu_auto: false,
                memory_bytes: 16 << 30,
                priority: -3,
                non_preemptible: true,
                time: TimeLimit::of_seconds(5400),
                idle: IdleTime::of_seconds(90),
                after: "ok:a,any:b".parse().unwrap(),
                array: Some("0-99:3%8".parse().unwrap()),
                element: Some(ArrayElement { array: "abc".to_owned(), index: 7 }),
                notify: vec!["mail".to_owned(), "lab".to_owned()],
                secrets: vec!["TOKEN".to_owned(), "B".to_owned()],
                notebook: Some(NotebookProgram::CodeServer),
            });
        }
        round_trip(&TaskRequest::default());
        round_trip(&TaskRequest {
            gpu: Some(GpuRequest::Memory(Bytes(8 << 30))),
            gpu_memory_limit: Some(Bytes(24 << 30)),
            isolation: Isolation::Shared,
            ..TaskRequest::default()
        });
        assert_eq!(TaskRequest::from_hyperparams(&HyperParams::new()), Ok(None));
    }

    #[test]
    fn amounts_are_readable() {
        assert_eq!(quantity(Bytes(4_000_000_000)), "4G");
        assert_eq!(quantity(Bytes(4 << 30)), "4Gi");
        assert_eq!(quantity(Bytes(512 << 20)), "512Mi");
        assert_eq!(quantity(Bytes(2_500_000_000)), "2.5G");
    }

    #[test]
    fn edited_by_hand() {
        let with = |pairs: &[(&str, &str)]| {
            let param = |v: &str| Param { value: v.to_owned(), ..Param::default() };
            let section = pairs.iter().map(|(name, value)| ((*name).to_owned(), param(value))).collect();
            TaskRequest::from_hyperparams(&HyperParams::from([(SECTION.to_owned(), section)]))
        };
        let says = |pairs: &[(&str, &str)]| with(pairs).unwrap_err().to_string();
        assert!(says(&[("gpu", "2")]).contains("cantle/gpu"));
        assert!(says(&[("gpu_memory", "8")]).contains("has no unit"));
        assert!(
            says(&[("gpu_memory", "8Gi"), ("gpu_memory_limit", "4Gi")])
                .contains("is not more than the request")
        );
        assert!(says(&[("gpu_memory_limit", "4Gi")]).contains("needs a request"));
        assert!(says(&[("gpu", "0.5"), ("gpus", "1")]).contains("keep one of"));
        assert!(says(&[("command", "python x.py")]).contains("JSON array"));
        assert!(says(&[("compute", "fast")]).contains("even, fair or strict"));
        assert!(says(&[("cpu", "many")]).contains("cantle/cpu"));
        assert!(says(&[("memory", "16")]).contains("a quantity such as 16Gi"));
        assert!(says(&[("priority", "high")]).contains("a whole number"));
        assert!(says(&[("non_preemptible", "yes")]).contains("true or false"));
        assert!(says(&[("idle", "10s")]).contains("cantle/idle is \"10s\"; write an idle time such as 2h"));
        assert!(says(&[("time", "two")]).contains("cantle/time is \"two\"; write a run time such as 2h"));
        assert!(says(&[("after", "a")]).contains("cantle/after is \"a\"; write ok:TASK"));
        assert!(says(&[("array", "9-0")]).contains("cantle/array: array 9-0: the indices have to ascend"));
        assert_eq!(with(&[("gpu", " ")]).unwrap().unwrap().gpu, None, "emptied in the web page");
    }

    #[test]
    fn shell_words() {
        let request = TaskRequest {
            command: ["echo", "", "a b", "it's", "--x=1"].map(str::to_owned).to_vec(),
            ..TaskRequest::default()
        };
        assert_eq!(request.shell_command(), r"echo '' 'a b' 'it'\''s' --x=1");
    }
}
