//! The text of a mail, as RFC 5322 has it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::Address;

use super::message::Message;
use crate::clock::{from_rfc3339, rfc5322};

/// Longer lines, and letters beyond ASCII, travel coded.
const LINE: usize = 900;
/// Bytes of a coded word: in base64 they are shorter than the 75 characters that a word may have.
const WORD: usize = 42;

/// Header and text of a mail.
pub(super) fn text(from: &Address, to: &Address, id: &str, message: &Message) -> String {
    let date = rfc5322(from_rfc3339(&message.time).unwrap_or_default());
    let subject = subject(message.text.lines().next().unwrap_or_default());
    let body = message.whole().lines().collect::<Vec<_>>().join("\r\n");
    let is_plain = body.is_ascii() && body.lines().all(|line| line.len() <= LINE);
    let (coding, body) = if is_plain { ("7bit", body) } else { ("base64", coded(&body)) };
    format!(
        "From: {from}\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {date}\r\nMessage-ID: <{id}@{domain}>\r\n\
         MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: {coding}\r\n\
         Auto-Submitted: auto-generated\r\n\r\n{body}\r\n",
        domain = from.domain()
    )
}

/// One header line, whatever the name of a task contains.
fn subject(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    if text.is_ascii() {
        return text;
    }
    let mut words = vec![String::new()];
    for c in text.chars() {
        match words.last_mut() {
            Some(word) if word.len() + c.len_utf8() <= WORD => word.push(c),
            _ => words.push(c.to_string()),
        }
    }
    let words: Vec<String> =
        words.iter().map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word))).collect();
    words.join("\r\n ")
}

fn coded(body: &str) -> String {
    let coded = STANDARD.encode(body);
    let mut lines = String::new();
    for (at, c) in coded.chars().enumerate() {
        if at > 0 && at % 76 == 0 {
            lines.push_str("\r\n");
        }
        // Writing to a string cannot fail.
        let _ = write!(lines, "{c}");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_adds_no_header() {
        let address: Address = "a@x.example".parse().unwrap();
        let of = |name: &str| {
            let message = Message { text: name.to_owned(), ..Message::default() };
            text(&address, &address, "1", &message)
        };
        let head = of("x\rBcc: b@x.example");
        let head = head.split("\r\n\r\n").next().unwrap();
        assert!(head.contains("Subject: x Bcc: b@x.example\r\n"), "{head}");
        assert!(of("x").ends_with("\r\n\r\nx\r\n"), "the negative control: a plain text stays plain");
        let long = of(&"ü".repeat(1000));
        assert!(long.is_ascii() && long.lines().all(|line| line.len() <= 78), "{long}");
    }
}
