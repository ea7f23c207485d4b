//! Parses an `AdmissionReview` and builds the answer.

use serde::Deserialize;
use serde_json::{Value, json};

use base64::Engine as _;

use super::{Denial, Rules, inject_ephemeral, inject_with_warning, marks};

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReviewOutcome {
    /// The pod was changed.
    Injected,
    /// The pod is as it should be.
    Unchanged,
    /// The pod is refused.
    Denied,
}

impl ReviewOutcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Injected, Self::Unchanged, Self::Denied];

    /// For metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Denied => "denied",
        }
    }
}

/// The question of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The slice of the pod.
    Slice,
    /// Whether a pod without a request has marks of the injector.
    Marks,
}

/// An answer to the API server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// How the call ended.
    pub outcome: ReviewOutcome,
    /// Why, where it was refused.
    pub denial: Option<Denial>,
    /// The `AdmissionReview` to send back.
    pub review: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    #[serde(default)]
    sub_resource: String,
    object: Value,
    #[serde(default)]
    old_object: Value,
}

/// The answer to an `AdmissionReview`.
///
/// # Errors
/// If it is none: there is no request to answer.
pub fn answer(question: Question, review: &Value, rules: &Rules) -> Result<Answer, serde_json::Error> {
    let request = Request::deserialize(&review["request"])?;
    let changed = match (question, request.sub_resource.as_str()) {
        (Question::Marks, _) => marks::check(&request.object, rules).map(|()| (request.object.clone(), None)),
        (Question::Slice, "ephemeralcontainers") => {
            inject_ephemeral(&request.object, &request.old_object, rules).map(|changed| (changed, None))
        }
        (Question::Slice, _) => inject_with_warning(&request.object, rules, &request.uid),
    };
    let (outcome, denial, response) = match changed {
        Err(denial) => {
            let status = json!({"code": 403, "reason": "Forbidden", "message": denial.to_string()});
            let response = json!({"uid": request.uid, "allowed": false, "status": status});
            (ReviewOutcome::Denied, Some(denial), response)
        }
        Ok((changed, _)) if changed == request.object => {
            (ReviewOutcome::Unchanged, None, json!({"uid": request.uid, "allowed": true}))
        }
        Ok((changed, warning)) => {
            let patch = serde_json::to_vec(&json_patch::diff(&request.object, &changed))?;
            let patch = base64::engine::general_purpose::STANDARD.encode(patch);
            let mut response =
                json!({"uid": request.uid, "allowed": true, "patchType": "JSONPatch", "patch": patch});
            if let Some(warning) = warning {
                response["warnings"] = json!([warning]);
            }
            (ReviewOutcome::Injected, None, response)
        }
    };
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Answer { outcome, denial, review })
}
