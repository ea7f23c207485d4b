//! State that ClearML's protocol carries as text.
//!
//! A task's `status_message` and `status_reason` are lines for people. ClearML's own server, SDK and agent nevertheless
//! act on some of them, and cantle has to keep two facts about a task on servers that have no field for them. Each phrase
//! that a program reads is in this file, with its writers and its readers. No other file compares such texts. A phrase
//! never changes: older agents and servers, and tasks in databases, still use it.

use std::fmt;

/// ClearML's phrase for a task that has come to its end: its web page and its users know it. No program reads it.
pub const DONE: &str = "worker execution done";
/// ClearML's phrase for a task that a user has stopped. No program reads it.
pub const ABORTED: &str = "task was stopped by tasks.stop";

/// The reason why a task in progress has to stop, in its `status_message`.
///
/// Written by the server. Read by the program that runs the task: ClearML's agent and SDK, cantle's agent, the queues
/// controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// `stopping`: a user called `tasks.stop`. ClearML's agent and SDK look for the word anywhere in the message.
    Abort,
    /// `stopping for another task`: cantle's server preempts or reclaims; `cantle.get_fleet` has the other task and the
    /// reason. ClearML's SDK finds the word "stopping" in it and calls the task's abort callback.
    Evict,
}

const ABORT: &str = "stopping";
const EVICT: &str = "stopping for another task";

impl StopRequest {
    /// The request in a `status_message`; `None` if the task may continue. The message of a task that is not in progress
    /// asks for nothing: it tells how the task ended.
    #[must_use]
    pub fn parse(status_message: &str) -> Option<Self> {
        if status_message == EVICT {
            Some(Self::Evict)
        } else {
            status_message.contains(ABORT).then_some(Self::Abort)
        }
    }

    /// The `status_message`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Abort => ABORT,
            Self::Evict => EVICT,
        }
    }
}

impl fmt::Display for StopRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The facts in a task's `status_reason`, for the programs that started the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReason<'a> {
    /// `put back: WHY`: the task goes back into its queue. ClearML's own server lets no task in progress into a queue, so
    /// it is stopped first. Written by cantle's agent and the queues controller; read by the agent, which finishes the
    /// second step for an agent that died between the two, and still starts such a task.
    PutBack(&'a str),
    /// `kubernetes pod UID`: the task belongs to this pod and is not known to run. Written by the queues controller when it
    /// takes the task; read by the controller that leads next, which then knows which pod the task was taken for.
    Pod(&'a str),
    /// Any other text, which is for people only.
    Text(&'a str),
}

const PUT_BACK: &str = "put back: ";
const POD: &str = "kubernetes pod ";

impl<'a> StatusReason<'a> {
    /// Parses a `status_reason`.
    #[must_use]
    pub fn parse(status_reason: &'a str) -> Self {
        if let Some(why) = status_reason.strip_prefix(PUT_BACK) {
            Self::PutBack(why)
        } else if let Some(uid) = status_reason.strip_prefix(POD) {
            Self::Pod(uid)
        } else {
            Self::Text(status_reason)
        }
    }

    /// The task is on its way back into its queue.
    #[must_use]
    pub const fn is_put_back(&self) -> bool {
        matches!(self, Self::PutBack(_))
    }
}

impl fmt::Display for StatusReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutBack(why) => write!(f, "{PUT_BACK}{why}"),
            Self::Pod(uid) => write!(f, "{POD}{uid}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_requests_round_trip() {
        for request in [StopRequest::Abort, StopRequest::Evict] {
            assert_eq!(StopRequest::parse(&request.to_string()), Some(request));
            assert!(request.as_str().contains("stopping"), "ClearML's SDK looks for the word");
        }
    }

    #[test]
    fn status_reasons_round_trip() {
        for reason in [
            StatusReason::PutBack("its pod was deleted"),
            StatusReason::PutBack(""),
            StatusReason::Pod("4b1f7a2e-8f3c-4f0e-9d0a-0d3c2f1b5a66"),
            StatusReason::Text("worker execution exit code 3"),
            StatusReason::Text(""),
        ] {
            assert_eq!(StatusReason::parse(&reason.to_string()), reason);
        }
    }

    /// The texts as older versions, and ClearML itself, write them.
    #[test]
    fn texts_on_the_wire_keep_their_meaning() {
        assert_eq!(StopRequest::parse("stopping"), Some(StopRequest::Abort));
        assert_eq!(StopRequest::parse("stopping for another task"), Some(StopRequest::Evict));
        assert_eq!(StopRequest::parse("user is stopping the task"), Some(StopRequest::Abort));
        for going_on in ["", "pulled by agent", "running on node n1", "stopped", "Stopping"] {
            assert_eq!(StopRequest::parse(going_on), None, "{going_on}");
        }
        let put_back = "put back: project a holds 1 of its quota of 1";
        assert_eq!(
            StatusReason::parse(put_back),
            StatusReason::PutBack("project a holds 1 of its quota of 1")
        );
        assert_eq!(StatusReason::parse("kubernetes pod u1"), StatusReason::Pod("u1"));
        for text in ["pulled by agent", "put back", "kubernetes", DONE, ABORTED] {
            assert_eq!(StatusReason::parse(text), StatusReason::Text(text));
        }
    }
}
