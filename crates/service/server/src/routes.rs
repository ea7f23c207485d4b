//! Maps endpoints to the functions that answer them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use cantle_clearml::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::Call;
use crate::error::ApiError;

type Answer = Pin<Box<dyn Future<Output = Result<Value, ApiError>> + Send>>;
type Handler = Box<dyn Fn(Call, Value) -> Answer + Send + Sync>;

/// All endpoints that take one JSON object.
#[derive(Default)]
pub(crate) struct Routes(BTreeMap<&'static str, Handler>);

impl Routes {
    /// The endpoint is named by the request's type.
    pub(crate) fn typed<R, F, Fut, T>(&mut self, handler: F)
    where
        R: Request + 'static,
        F: Fn(Call, R) -> Fut + Send + Sync + Clone + 'static,
        Fut: Future<Output = Result<T, ApiError>> + Send,
        T: Serialize,
    {
        self.on(R::ENDPOINT, handler);
    }

    /// For requests without a type in `clearml`.
    pub(crate) fn on<R, F, Fut, T>(&mut self, endpoint: &'static str, handler: F)
    where
        R: DeserializeOwned + Send + 'static,
        F: Fn(Call, R) -> Fut + Send + Sync + Clone + 'static,
        Fut: Future<Output = Result<T, ApiError>> + Send,
        T: Serialize,
    {
        let erased = move |call: Call, body: Value| -> Answer {
            let handler = handler.clone();
            Box::pin(async move {
                let request = serde_json::from_value(body);
                let request = request.map_err(ApiError::unreadable)?;
                let data = handler(call, request).await?;
                serde_json::to_value(data).map_err(ApiError::unwritable)
            })
        };
        let before = self.0.insert(endpoint, Box::new(erased));
        debug_assert!(before.is_none(), "two handlers for {endpoint}");
    }

    /// All endpoints, in order.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.0.keys().copied().collect()
    }

    /// Answers a call.
    pub(crate) async fn call(&self, endpoint: &str, call: Call, body: Value) -> Result<Value, ApiError> {
        match self.0.get(endpoint) {
            Some(handler) => handler(call, body).await,
            None => Err(ApiError::unknown_endpoint(endpoint)),
        }
    }
}
