//! Reports to the kubelet which devices work, for the status of the pods that have them. New pods are kept away by a
//! taint, or because the devices of a lost GPU are no longer published.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::driver::Driver;
use crate::node::ticks;
use crate::socket::stopped;

/// Interval of reports to the kubelet. It takes what is older than 30 seconds for unknown.
const EVERY: Duration = Duration::from_secs(5);

use super::proto::health::dra_resource_health_server::DraResourceHealth;
use super::proto::health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};

/// The service.
pub(super) struct Health {
    driver: Driver,
    stop: watch::Receiver<bool>,
}

impl Health {
    pub(super) fn new(driver: Driver, stop: watch::Receiver<bool>) -> Self {
        Self { driver, stop }
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Health {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let looks =
            stream::unfold((self.driver.clone(), KnownDevices::default(), ticks(EVERY)), |state| async {
                let (driver, mut seen, mut ticks) = state;
                ticks.tick().await;
                let found = driver.inventory().await;
                let works = found.map(|found| {
                    let working = found.devices.into_iter().filter(|device| !device.lost);
                    working.map(|device| device.name).collect()
                });
                let devices = seen.judge(works.ok()).into_iter();
                let devices = devices.map(|(name, health)| spoken(driver.pool(), name, health)).collect();
                Some((Ok(NodeWatchResourcesResponse { devices }), (driver, seen, ticks)))
            });
        // The server waits for its streams before it ends.
        Ok(Response::new(Box::pin(looks.take_until(stopped(self.stop.clone())))))
    }
}

fn spoken(pool: &str, name: String, health: HealthStatus) -> DeviceHealth {
    DeviceHealth {
        device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: name }),
        health: health.into(),
        last_updated_time: Timestamp::now().as_second(),
    }
}

/// Every device that was there at some time.
#[derive(Debug, Default)]
struct KnownDevices(BTreeSet<String>);

impl KnownDevices {
    /// The health of each, given those that work now; none if that is not known.
    fn judge(&mut self, works: Option<BTreeSet<String>>) -> Vec<(String, HealthStatus)> {
        self.0.extend(works.iter().flatten().cloned());
        let health = |name: &String| match &works {
            None => HealthStatus::Unknown,
            Some(works) if works.contains(name) => HealthStatus::Healthy,
            Some(_) => HealthStatus::Unhealthy,
        };
        self.0.iter().map(|name| (name.clone(), health(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_goes_is_unhealthy_until_it_comes_back() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let mut seen = KnownDevices::default();
        let mut judged = |works| seen.judge(works).into_iter().map(|(_, health)| health).collect::<Vec<_>>();
        let (healthy, unhealthy, unknown) =
            (HealthStatus::Healthy, HealthStatus::Unhealthy, HealthStatus::Unknown);
        assert_eq!(judged(names(&["a", "b"])), [healthy, healthy]);
        assert_eq!(judged(names(&["b"])), [unhealthy, healthy]);
        assert_eq!(judged(None), [unknown, unknown]);
        assert_eq!(judged(names(&["a", "b", "c"])), [healthy, healthy, healthy]);
    }
}
