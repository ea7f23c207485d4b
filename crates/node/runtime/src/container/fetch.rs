//! Fetches images that are not here yet, which can take minutes, and reports the progress.

use std::collections::BTreeMap;
use std::time::Duration;

use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptions;
use cantle_model::Bytes;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::EngineError;
use super::calls::{CALL_LIMIT, limited};
use super::config::Pull;
use super::engine::Engine;
use super::plan::Plan;

const FETCH_LIMIT: Duration = Duration::from_secs(3600);
/// How often progress is reported.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(5);

impl Engine {
    /// Fetches the image if the task's `--pull` requires it, and reports the progress.
    pub(super) async fn have_image(
        &self,
        image: &str,
        plan: &Plan,
        notify: impl Fn(&str),
    ) -> Result<(), EngineError> {
        let here = limited("image", CALL_LIMIT, self.docker().inspect_image(image)).await.is_ok();
        let pull = match plan.extra.pull {
            Pull::Always => true,
            Pull::Missing => !here,
            Pull::Never if !here => {
                let why = "it is not on this machine, and --pull=never forbids to fetch it".to_owned();
                return Err(EngineError::Refused { what: format!("image {image}"), why });
            }
            Pull::Never => false,
        };
        if pull { self.fetch(image, plan.extra.platform.clone(), notify).await } else { Ok(()) }
    }

    /// Fetches the image, whether an older one of that name is here or not.
    pub(super) async fn fetch(
        &self,
        image: &str,
        platform: String,
        notify: impl Fn(&str),
    ) -> Result<(), EngineError> {
        // Without a tag the engine would fetch every tag there is.
        let last = image.rsplit('/').next().unwrap_or(image);
        let tagged = if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") };
        let options = CreateImageOptions { from_image: Some(tagged), platform, ..Default::default() };
        notify(&format!("fetching image {image}"));
        let mut progress = Progress::new(Instant::now());
        let mut steps = self.docker().create_image(Some(options), None, None);
        let fetch = async {
            while let Some(step) = steps.next().await {
                if let Some(so_far) = progress.step(&step?, Instant::now()) {
                    notify(&format!("fetching image {image}: {so_far}"));
                }
            }
            Ok(())
        };
        limited(&format!("pull {image}"), FETCH_LIMIT, fetch).await?;
        notify(&format!("image {image} is here after {:.0} s", progress.began.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// The progress of an image.
struct Progress {
    began: Instant,
    notified: Instant,
    /// Bytes that are here, and all of them, by layer.
    layers: BTreeMap<String, (u64, u64)>,
}

impl Progress {
    const fn new(now: Instant) -> Self {
        Self { began: now, notified: now, layers: BTreeMap::new() }
    }

    /// Counts the engine's progress; returns a line when one is due.
    fn step(&mut self, step: &CreateImageInfo, now: Instant) -> Option<String> {
        let detail = step.progress_detail.as_ref();
        let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        let counted = detail.and_then(|detail| Some((bytes(detail.current)?, bytes(detail.total)?)));
        // While a layer is unpacked the engine counts its bytes again from zero.
        if let (Some(layer), Some("Downloading"), Some(counted)) = (&step.id, step.status.as_deref(), counted)
        {
            self.layers.insert(layer.clone(), counted);
        }
        if now.duration_since(self.notified) < NOTIFY_INTERVAL {
            return None;
        }
        self.notified = now;
        let (here, all) = self.layers.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let seconds = now.duration_since(self.began).as_secs();
        Some(match step.status.as_deref() {
            Some("Extracting") => format!("unpacking, {seconds} s so far"),
            _ if all > 0 => format!("{} of {} in {seconds} s", Bytes(here), Bytes(all)),
            _ => format!("{seconds} s so far"),
        })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn step(layer: &str, status: &str, bytes: Option<(i64, i64)>) -> CreateImageInfo {
        let progress_detail =
            bytes.map(|(current, total)| ProgressDetail { current: Some(current), total: Some(total) });
        CreateImageInfo {
            id: Some(layer.to_owned()),
            status: Some(status.to_owned()),
            progress_detail,
            error_detail: None,
        }
    }

    #[test]
    fn people_are_told_now_and_then_how_much_is_here() {
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        let mut progress = Progress::new(start);
        let mut at = |seconds, step: CreateImageInfo| progress.step(&step, after(seconds));
        assert_eq!(at(1, step("a", "Downloading", Some((1 << 20, 8 << 20)))), None);
        let second = step("b", "Downloading", Some((1 << 20, 2 << 20)));
        assert_eq!(at(6, second).as_deref(), Some("2 MiB of 10 MiB in 6 s"));
        assert_eq!(at(7, step("a", "Downloading", Some((2 << 20, 8 << 20)))), None);
        assert_eq!(
            at(12, step("b", "Extracting", Some((1, 2 << 20)))).as_deref(),
            Some("unpacking, 12 s so far")
        );
        assert_eq!(at(18, step("a", "Downloading", None)).as_deref(), Some("3 MiB of 10 MiB in 18 s"));
    }

    #[test]
    fn an_engine_that_counts_nothing_is_waited_for_all_the_same() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let said = progress.step(&step("a", "Copying blob", None), start + Duration::from_secs(5));
        assert_eq!(said.as_deref(), Some("5 s so far"));
    }
}
