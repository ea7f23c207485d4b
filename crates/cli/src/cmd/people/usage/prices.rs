//! The price sheet of `cantle usage --prices` and `cantle server --prices`.

use std::path::Path;

use cantle_clearml::usage::{PriceEntry, PriceSheet};
use cantle_usage::{Period, Price, PriceError, Prices};
use serde::Deserialize;
use toml::Spanned;

use super::moment;
use crate::error::{CliError, ErrorKind};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    currency: Spanned<String>,
    price: Vec<Spanned<PriceEntry>>,
}

/// Reads and checks a sheet. Errors name its line.
pub(crate) fn read(path: &Path) -> Result<PriceSheet, CliError> {
    let usage = |why: String| CliError::new(ErrorKind::Usage, format!("--prices {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    parse(&text).map_err(usage)
}

fn parse(text: &str) -> Result<PriceSheet, String> {
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|error| {
        format!("line {}: {}", error.span().map_or(1, |span| line(span.start)), error.message())
    })?;
    let currency = file.currency.get_ref();
    if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        let at = line(file.currency.span().start);
        return Err(format!("line {at}: currency is \"{currency}\"; it is a code of ISO 4217 like EUR"));
    }
    let lines: Vec<usize> = file.price.iter().map(|entry| line(entry.span().start)).collect();
    let mut prices: Vec<PriceEntry> = Vec::new();
    let mut checked = Vec::new();
    for (entry, line) in file.price.into_iter().map(Spanned::into_inner).zip(&lines) {
        let time = |text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            moment(text).map(Some).map_err(|why| format!("line {line}: the time is \"{text}\"; {why}"))
        };
        let (from, to) = (time(&entry.from)?, time(&entry.to)?);
        if !(0.0..1e9).contains(&entry.gpu_hour) {
            return Err(format!("line {line}: gpu_hour is {}; it is a price, 0 or more", entry.gpu_hour));
        }
        let period = Period {
            from_us: from.map_or(i64::MIN, |at| at.as_microsecond()),
            to_us: to.map_or(i64::MAX, |at| at.as_microsecond()),
        };
        checked.push(Price { model: entry.model.clone(), micro: 0, period });
        let text = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
        prices.push(PriceEntry { from: text(from), to: text(to), ..entry });
    }
    let at = |index: usize| lines.get(index).copied().unwrap_or(1);
    Prices::new(checked).map_err(|error| match error {
        PriceError::Backwards(index) => format!("line {}: {error}", at(index)),
        PriceError::Overlap(first, second) | PriceError::Gap(first, second) => {
            format!("lines {} and {}: {error} ({})", at(first), at(second), prices[first].model)
        }
    })?;
    Ok(PriceSheet { currency: currency.clone(), prices })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"currency = "EUR"

[[price]]
model = "NVIDIA A100-SXM4-40GB"
gpu_hour = 2.5
to = "2026-12-01"

[[price]]
model = "NVIDIA A100-SXM4-40GB"
gpu_hour = 2.25
from = "2026-12-01"

[[price]]
model = "*"
gpu_hour = 1
"#;

    #[test]
    fn a_sheet_is_read() {
        let sheet = parse(GOOD).unwrap();
        assert_eq!((sheet.currency.as_str(), sheet.prices.len()), ("EUR", 3));
        assert_eq!(sheet.prices[0].to.as_deref(), Some("2026-12-01T00:00:00Z"));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let because = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            parse(&GOOD.replacen(from, to, 1)).unwrap_err()
        };
        let overlap = because("from = \"2026-12-01\"", "from = \"2026-11-01\"");
        assert_eq!(
            overlap,
            "lines 3 and 8: two prices of the model are valid at the same time (NVIDIA A100-SXM4-40GB)"
        );
        let gap = because("from = \"2026-12-01\"", "from = \"2027-01-01\"");
        assert_eq!(gap, "lines 3 and 8: the model has no price between these two (NVIDIA A100-SXM4-40GB)");
        assert_eq!(because("EUR", "euro"), "line 1: currency is \"euro\"; it is a code of ISO 4217 like EUR");
        assert_eq!(because("2.5", "-2.5"), "line 3: gpu_hour is -2.5; it is a price, 0 or more");
        assert!(because("gpu_hour = 1", "gpu_huor = 1").starts_with("line 15: unknown field `gpu_huor`"));
    }
}
