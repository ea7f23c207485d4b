//! Containers that docker's own client starts, by a command line of another program: inspects the image before the start,
//! and checks afterwards that the container has the slice.

use std::collections::BTreeSet;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::CreateContainerOptions;
use cantle_model::{LeaseId, TaskId};
use tokio::time::sleep;

use super::EngineError;
use super::calls::{CALL_LIMIT, limited};
use super::command_line::DockerRun;
use super::copies::{self, DriverCopies};
use super::engine::Engine;
use super::package;
use super::plan::{LABEL_LEASE, LABEL_TASK};
use super::task::{pid_of, verify};
use crate::{Confinement, StartError, TaskSpec};

/// How often the engine is asked whether the container runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A running container that does not see its slice, or could pass it by.
#[derive(Debug)]
pub struct Unconfined {
    id: String,
    why: StartError,
}

/// The running container of a lease.
#[derive(Debug)]
pub struct ForeignContainer {
    /// Its first process.
    pub pid: u32,
    /// The fault of it.
    pub unconfined: Option<Unconfined>,
}

impl Unconfined {
    /// Ends it, and returns the reason. Docker's client ends with its container, so a waiter for the client needs the
    /// reason before.
    pub async fn end(self, engine: &Engine) -> StartError {
        match engine.remove(&self.id).await {
            Ok(()) => self.why,
            Err(error) => error.into(),
        }
    }
}

impl Engine {
    /// The image's own copies of the driver's libraries. An image that is not here is fetched first, as the client would do.
    ///
    /// # Errors
    /// If the engine does not answer, or the image is not available.
    pub async fn copies_in(
        &self,
        run: &DockerRun,
        spec: &TaskSpec,
        task: &TaskId,
        notify: impl Fn(&str),
    ) -> Result<DriverCopies, EngineError> {
        let image = run.image();
        if limited("image", CALL_LIMIT, self.docker().inspect_image(image)).await.is_err() {
            self.fetch(image, run.platform(), &notify).await?;
        }
        let found = limited("image", CALL_LIMIT, self.docker().inspect_image(image)).await?;
        let env = found.config.and_then(|config| config.env).unwrap_or_default();
        let known = copies::known_of(&found.id.unwrap_or_default(), &env, &self.searched);
        // A container is needed to look into an image, and to fetch a package.
        if let Some(covered) = known
            && package::newer(&covered, &spec.confinement.libraries).is_none()
        {
            return Ok(DriverCopies { covered, package: None });
        }
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec!["true".to_owned()]),
            labels: Some(
                [(LABEL_LEASE, &spec.lease.0), (LABEL_TASK, &task.0)]
                    .map(|(name, value)| (name.to_owned(), value.clone()))
                    .into(),
            ),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..Default::default() }),
            ..Default::default()
        };
        let call = self.docker().create_container(None::<CreateContainerOptions>, body);
        let id = limited("create", CALL_LIMIT, call).await?.id;
        let copies = self.copies(&id, spec, notify).await;
        self.remove(&id).await?;
        copies
    }

    /// Waits until the container of `lease` runs, and looks whether it sees its slice and cannot pass it by.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub async fn verify_of(
        &self,
        lease: &LeaseId,
        confinement: &Confinement,
    ) -> Result<ForeignContainer, StartError> {
        loop {
            let all: BTreeSet<String> = self
                .leftovers()
                .await?
                .into_iter()
                .filter(|one| one.lease == *lease)
                .map(|one| one.id)
                .collect();
            for id in all {
                let pid = pid_of(self.docker(), &id).await.unwrap_or(0);
                if pid > 0 {
                    let unconfined = verify(pid, confinement).err().map(|why| Unconfined { id, why });
                    return Ok(ForeignContainer { pid, unconfined });
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}
