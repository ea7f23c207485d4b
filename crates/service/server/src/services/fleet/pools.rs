//! `cantle.*` about pools of GPUs.

use cantle_clearml::Empty;
use cantle_clearml::pools::{DeletePool, GetPools, PoolMatches, PoolView, Pools, SetPool};
use cantle_model::{Pool, ProjectQuota, glob};

use super::nodes;
use crate::app::Call;
use crate::error::ApiError;
use crate::rights::Right;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_pools);
    routes.typed(set_pool);
    routes.typed(delete_pool);
}

async fn get_pools(call: Call, _request: GetPools) -> Result<Pools, ApiError> {
    let nodes: Vec<nodes::Node> = nodes::all(&call).await?.into_iter().filter(|node| node.alive).collect();
    // Only those that the caller sees are shown.
    let projects = call.app.store.projects().await?;
    let view = |pool: Pool| {
        let gpus = nodes.iter().flat_map(|node| node.report.gpus.iter().map(move |gpu| (node, gpu)));
        let inside: Vec<u64> = gpus
            .filter(|(node, gpu)| pool.has(&node.report.node, &gpu.model))
            .map(|(_, gpu)| gpu.allocated_milli.into())
            .collect();
        let names_it = |quota: &ProjectQuota| quota.named_pools().any(|name| name == pool.name);
        let users = projects.iter().filter(|row| row.quota.as_ref().is_some_and(names_it));
        let seen = users.filter(|row| call.who.may(Right::See, Some(&row.name)));
        PoolView {
            gpus: inside.len() as u64,
            allocated_milli: inside.iter().sum(),
            projects: seen.map(|row| row.name.clone()).collect(),
            pool,
        }
    };
    Ok(Pools { pools: call.store.pools().await?.into_iter().map(view).collect() })
}

async fn set_pool(call: Call, request: SetPool) -> Result<PoolMatches, ApiError> {
    let SetPool { pool: name, nodes, models } = request;
    let pool = Pool { name, nodes, models };
    pool.check().map_err(|error| ApiError::invalid(error.to_string()).caused_by(error))?;
    call.store.set_pool(&pool, &call.who.label(), call.now_us).await?;
    let known = nodes::all(&call).await?;
    let gpus = || known.iter().flat_map(|node| node.report.gpus.iter().map(move |gpu| (node, gpu)));
    let no_node = |pattern: &&String| !gpus().any(|(node, _)| glob(pattern, &node.report.node));
    let no_model = |pattern: &&String| !gpus().any(|(_, gpu)| glob(pattern, &gpu.model));
    let unmatched = pool.nodes.iter().filter(no_node).chain(pool.models.iter().filter(no_model));
    let inside = gpus().filter(|(node, gpu)| pool.has(&node.report.node, &gpu.model)).count();
    Ok(PoolMatches { gpus: inside as u64, unmatched: unmatched.cloned().collect() })
}

async fn delete_pool(call: Call, request: DeletePool) -> Result<Empty, ApiError> {
    call.store.delete_pool(&request.pool, &call.who.label(), call.now_us).await?;
    Ok(Empty {})
}
