//! The text of a notice, in the form of each kind of receiver.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longer texts are cut: a reason may be a program's output.
const LONGEST: usize = 1500;
/// The beginning of a key, as in <https://www.standardwebhooks.com>.
const SECRET: &str = "whsec_";

/// A notice, as receivers of JSON get it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// `task.failed`, `agent-away`, …
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// RFC 3339.
    pub(crate) time: String,
    /// For people.
    pub(crate) text: String,
    /// The task that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<MessageTask>,
    /// The node that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
}

/// A task in a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MessageTask {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) state: String,
    pub(crate) reason: Option<String>,
    pub(crate) exit_code: Option<i64>,
    /// Its page.
    pub(crate) url: String,
}

impl Message {
    /// The text with the address of the page.
    pub(crate) fn whole(&self) -> String {
        match &self.task {
            Some(task) => format!("{}\n{}", self.text, task.url),
            None => self.text.clone(),
        }
    }

    /// Slack's form.
    pub(crate) fn slack(&self) -> Value {
        let text = self.whole().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        json!({ "text": text })
    }

    /// The form of a workflow of Teams: an adaptive card.
    pub(crate) fn teams(&self) -> Value {
        let mut card = json!({
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [{"type": "TextBlock", "text": self.text, "wrap": true}],
        });
        if let Some(task) = &self.task {
            card["actions"] = json!([{"type": "Action.OpenUrl", "title": "Open the task", "url": task.url}]);
        }
        json!({
            "type": "message",
            "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
        })
    }
}

/// A text of a length that all receivers take.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A new key of signatures.
pub(crate) fn new_secret() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes)?;
    Ok(format!("{SECRET}{}", STANDARD.encode(bytes)))
}

/// The bytes of a key as [`new_secret`] makes it; any other text is its own bytes.
fn key(secret: &str) -> hmac::Key {
    let bytes = secret.strip_prefix(SECRET).and_then(|coded| STANDARD.decode(coded).ok());
    hmac::Key::new(hmac::HMAC_SHA256, &bytes.unwrap_or_else(|| secret.as_bytes().to_vec()))
}

/// The signature of a body: HMAC-SHA256 over id, time and body.
pub(crate) fn signature(secret: &str, id: &str, time_s: i64, body: &str) -> String {
    let signed = hmac::sign(&key(secret), format!("{id}.{time_s}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the standard's own libraries.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let (secret, id) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek");
        let signed = signature(secret, id, 1_614_265_330, "{\"test\": 2432232314}");
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(signature(secret, id, 1_614_265_331, "{\"test\": 2432232314}"), signed);
    }

    #[test]
    fn slack_sees_no_commands_in_names() {
        let message = Message { text: "<!channel> a & b".to_owned(), ..Message::default() };
        assert_eq!(message.slack(), json!({"text": "&lt;!channel&gt; a &amp; b"}));
        assert!(cut(&"ü".repeat(2000)).chars().count() == LONGEST + 1);
    }
}
