//! The sizes of queues: most queues give each task the same slice, whatever it asks for. A task that asks for another one is
//! refused when it enters, because otherwise its user learns only from its failure what it got.

use cantle_clearml::tasks::HyperParams;
use cantle_clearml::{TaskRequest, subcode};
use cantle_model::{ComputeRequest, GpuRequest, Isolation, QueueWant, counted};
use serde::Deserialize as _;
use serde_json::Value;

use crate::app::Call;
use crate::error::ApiError;
use crate::services::fleet::nodes;
use crate::services::people::shares;

/// Refuses to put a task with these parameters into a queue that will give it something else than it asks for.
pub(crate) async fn check<'a>(
    call: &Call,
    queue: &str,
    params: impl Iterator<Item = Option<&'a Value>> + Send,
) -> Result<(), ApiError> {
    // If it cannot be read, an agent refuses the task with the reason.
    let read = |params: &Value| {
        TaskRequest::from_hyperparams(&HyperParams::deserialize(params).ok()?).ok().flatten()
    };
    let requests: Vec<TaskRequest> = params.flatten().filter_map(read).collect();
    let asked: Vec<&GpuRequest> = requests.iter().filter_map(|request| request.gpu.as_ref()).collect();
    let of_gpu = requests.iter().find_map(wish_about_a_gpu);
    if asked.is_empty() && of_gpu.is_none() {
        return Ok(());
    }
    let Some((_, name)) = call.store.queue_names().await?.into_iter().find(|(id, _)| id == queue) else {
        return Ok(());
    };
    let mut nodes = nodes::all(call).await?;
    nodes.retain(|node| node.alive && node.serves(&name));
    let wants: Vec<QueueWant> = nodes.chunks(1).map(|node| shares::spec(node, &name).want).collect();
    if let Some(wish) = of_gpu
        && !wants.is_empty()
        && wants.iter().all(|want| *want == QueueWant::None)
    {
        let text = format!("queue {name} gives tasks no GPU; this task asks for {wish}");
        return Err(ApiError::new(400, subcode::OTHER_SIZE, text));
    }
    for own in asked {
        // One node that gives the task what it asks for is enough.
        let [first, rest @ ..] = wants.as_slice() else { return Ok(()) };
        if !gives(first, own) && !rest.iter().any(|want| gives(want, own)) {
            return Err(refusal(&name, first, own));
        }
    }
    Ok(())
}

/// The same for tasks in the store.
pub(crate) async fn check_tasks(call: &Call, queue: &str, tasks: &[String]) -> Result<(), ApiError> {
    if tasks.is_empty() {
        return Ok(());
    }
    let docs = call.store.params_of_tasks(tasks).await?;
    check(call, queue, docs.iter().map(|doc| doc.get("hyperparams"))).await
}

/// A part of a task's request that only a GPU can serve, apart from its size.
fn wish_about_a_gpu(request: &TaskRequest) -> Option<String> {
    match request.isolation {
        _ if request.cpu_auto => {
            return Some("cpu auto, a part of its node as large as that of its GPUs".to_owned());
        }
        Isolation::Any => {}
        Isolation::Mig => return Some("the isolation mig".to_owned()),
        Isolation::Shared => return Some("the isolation shared".to_owned()),
    }
    (request.compute != ComputeRequest::default()).then(|| format!("{} compute", request.compute.mode))
}

fn gives(want: &QueueWant, own: &GpuRequest) -> bool {
    match want {
        QueueWant::Task => true,
        QueueWant::Fixed(size) => size == own,
        QueueWant::Range { min, max } => min == max && *own == GpuRequest::Gpus(*min),
        QueueWant::None => false,
    }
}

fn refusal(queue: &str, want: &QueueWant, own: &GpuRequest) -> ApiError {
    let given = match want {
        QueueWant::Fixed(size) => format!("each task {size}"),
        QueueWant::Range { min, max } => format!("each task {min} to {}", counted(max, "GPU")),
        QueueWant::None => "tasks no GPU".to_owned(),
        QueueWant::Task => "each task what it asks for".to_owned(),
    };
    let text = format!("queue {queue} gives {given}; this task asks for {own}");
    ApiError::new(400, subcode::OTHER_SIZE, text)
}
