//! `*_many`: one call for several tasks or models.

use std::future::Future;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::error::ApiError;

/// A request about several things; the rest is the request about each of them.
#[derive(Deserialize)]
pub(crate) struct Many {
    pub(crate) ids: Vec<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Many {
    /// The request about one of them.
    pub(crate) fn request<R: DeserializeOwned>(&self, member: &str, id: &str) -> Result<R, ApiError> {
        let mut fields = self.rest.clone();
        fields.insert(member.to_owned(), json!(id));
        serde_json::from_value(Value::Object(fields)).map_err(ApiError::unreadable)
    }

    /// The same about some of them.
    pub(crate) fn of(&self, ids: &[String]) -> Self {
        Self { ids: ids.to_vec(), rest: self.rest.clone() }
    }
}

/// One result for each; a failure does not affect the others. `member` is where the request about one of them has its id.
pub(crate) async fn for_each<R, F, Fut, T>(
    call: &Call,
    member: &str,
    many: Many,
    act: F,
) -> Result<Value, ApiError>
where
    R: DeserializeOwned,
    F: Fn(Call, R) -> Fut,
    Fut: Future<Output = Result<T, ApiError>>,
    T: Serialize,
{
    let (mut succeeded, mut failed) = (Vec::new(), Vec::new());
    for id in &many.ids {
        match act(call.clone(), many.request(member, id)?).await {
            Ok(answer) => {
                let mut answer = serde_json::to_value(answer).map_err(ApiError::unwritable)?;
                answer["id"] = json!(id);
                succeeded.push(answer);
            }
            Err(error) => {
                let codes = json!([error.code, error.subcode]);
                failed.push(json!({"id": id, "error": {"codes": codes, "msg": error.message}}));
            }
        }
    }
    Ok(json!({ "succeeded": succeeded, "failed": failed }))
}
