//! `cantle sim truth`.

use std::process::ExitCode;

use super::Context;
use crate::error::{Kind, Outcome, as_kind};
use crate::out::Format;

/// What the simulated driver itself holds. JSON is the driver's own text, so that nothing of ours stands between.
pub(crate) fn truth(context: &Context) -> Outcome {
    let places = &context.places;
    // Makes the GPUs that were asked for, if they are not there yet: nobody has used them, which is an answer too.
    places.source()?;
    let json =
        cantle_driver::sim::truth_json(&places.sim, &places.lib).map_err(as_kind(Kind::Unavailable))?;
    if context.printer.format == Format::Json {
        context.printer.data(&json);
        return Ok(ExitCode::SUCCESS);
    }
    let truth: serde_json::Value = serde_json::from_str(&json).map_err(as_kind(Kind::Failed))?;
    for gpu in truth["gpus"].as_array().into_iter().flatten() {
        let mib = |value: &serde_json::Value| value.as_u64().unwrap_or(0) >> 20;
        let (used, total) = (mib(&gpu["used_bytes"]), mib(&gpu["memory_bytes"]));
        context.printer.data(&format!("{}  {used} / {total} MiB", gpu["uuid"].as_str().unwrap_or("?")));
        for process in gpu["processes"].as_array().into_iter().flatten() {
            context.printer.data(&format!("  pid {}  {} MiB", process["pid"], mib(&process["used_bytes"])));
        }
    }
    Ok(ExitCode::SUCCESS)
}
