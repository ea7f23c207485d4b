//! The listener's own answers: one line, as a page or as text.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use cantle_clearml::subcode;
use cantle_model::TaskStatus;

use super::Shows;
use crate::error::ApiError;

/// No script, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}";
/// Seconds until a browser asks again.
const AGAIN_S: u32 = 2;

/// One answer.
#[derive(Debug)]
pub(super) struct Page {
    status: StatusCode,
    text: String,
    /// The page of the task, and the words of the link.
    link: Option<(String, &'static str)>,
    /// The browser asks again by itself.
    again: bool,
}

impl Page {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), link: None, again: false }
    }

    pub(super) fn refused(error: ApiError) -> Self {
        if error.subcode == subcode::INVALID_TASK_ID {
            // As for a task that the caller may not see.
            return Self::new(StatusCode::NOT_FOUND, "There is no such task.");
        }
        let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(status, error.message)
    }

    /// There is no cookie, or an old one.
    pub(super) fn log_in(address: &str) -> Self {
        let link = Some((address.to_owned(), "Open the notebook with your login"));
        Self { link, ..Self::new(StatusCode::UNAUTHORIZED, "This browser has not opened this notebook.") }
    }

    pub(super) fn not_running(status: TaskStatus, reason: &str, address: &str) -> Self {
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        if matches!(status, TaskStatus::Queued | TaskStatus::Created) {
            let text = format!("The task of this notebook is {status}{why}.");
            return Self { again: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text) };
        }
        let text = format!("The task of this notebook has ended. It is {status}{why}.");
        let link = Some((address.replacen("/ui/-/notebook/", "/ui/tasks/", 1), "Page of the task"));
        Self { link, ..Self::new(StatusCode::GONE, text) }
    }

    pub(super) fn starting() -> Self {
        let text = "The notebook starts. This page opens it as soon as it listens.";
        Self { again: true, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, text) }
    }

    pub(super) fn answer(self, shows: Shows) -> Response {
        let mut response = match shows {
            Shows::Text => (self.status, format!("{}\n", self.text)).into_response(),
            Shows::Page => {
                let link = self
                    .link
                    .as_ref()
                    .map(|(address, words)| format!("<p><a href=\"{}\">{words}</a></p>", escaped(address)));
                let page = format!(
                    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
                     <title>Notebook</title><style>{STYLE}</style><h1>Notebook</h1><p>{}</p>{}</html>",
                    escaped(&self.text),
                    link.unwrap_or_default()
                );
                let html = HeaderValue::from_static("text/html; charset=utf-8");
                (self.status, [(header::CONTENT_TYPE, html)], page).into_response()
            }
        };
        let headers = response.headers_mut();
        if self.again && shows == Shows::Page {
            headers.insert(header::REFRESH, HeaderValue::from(AGAIN_S));
        }
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// The answer to a browser that may not open a notebook.
pub(crate) fn refusal(error: ApiError) -> Response {
    Page::refused(error).answer(Shows::Page)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reasons_are_text_on_the_page() {
        let page =
            Page::not_running(TaskStatus::Failed, "<script>x</script> \"&\"", "http://h/ui/-/notebook/t");
        let response = page.answer(Shows::Page);
        assert_eq!(response.status(), StatusCode::GONE);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("failed: &lt;script&gt;x&lt;/script&gt; &quot;&amp;&quot;."), "{body}");
        assert!(body.contains("href=\"http://h/ui/tasks/t\""), "{body}");
    }
}
