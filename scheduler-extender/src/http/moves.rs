//! Which pods to move so that a shape finds GPUs on one node. It changes nothing. The JSON is that of [`api::moves`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use api::moves::{Move, Moves, Proposal, Shape, Staying};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use placement::gpu::GpuRequest;
use placement::moves::{self, Found, PodNeeds, ProposedMove};
use placement::units::{Cores, PodUid, Units};

use super::{Answer, timed};
use crate::Extender;
use crate::moves::MoveSearch;

pub(super) const PATH: &str = "/v1/moves";

/// More GPUs than any node has.
const MAX_GPUS: u32 = 64;

pub(super) async fn moves(State(extender): State<Arc<Extender>>, uri: Uri) -> Answer {
    timed(&extender.decider, PATH, answer(&extender, &uri)).await
}

async fn answer(extender: &Extender, uri: &Uri) -> Answer {
    let start = Instant::now();
    let decider = &extender.decider;
    let read = shape(uri).and_then(|asked| request(&asked).map(|request| (asked, request)));
    let (asked, request) = match read {
        Ok(read) => read,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let now = decider.now();
    let search = MoveSearch {
        view: &decider.view,
        client: extender.binder.client(),
        names: &decider.names,
        left_out: &BTreeSet::new(),
        moved: BTreeSet::new(),
    };
    let takes = [(decider.names.gpu_resource().to_owned(), f64::from(request.peak().0))];
    // The UID of no pod: that of unmanaged memory is empty.
    let needs = PodNeeds::new(PodUid::from("shape"), Some(request), takes.into());
    let found = match search.run(&needs, asked.priority, now).await {
        Ok(found) => found,
        Err(error) => return Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &error),
    };
    tracing::debug!(seconds = start.elapsed().as_secs_f64(), "searched for moves");
    let Found { proposal, nodes, stays } = found;
    let mut staying = Vec::new();
    for (reason, pods) in stays {
        staying.push(Staying { reason, pods: u32::try_from(pods).unwrap_or(u32::MAX) });
    }
    Answer::new(
        "ok",
        &Moves {
            time: now,
            replica: extender.replicas.described(decider.view.is_complete()),
            asked,
            proposal: proposal.map(wire),
            nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
            staying,
        },
    )
}

/// What the request's query asks about.
fn shape(uri: &Uri) -> Result<Shape, String> {
    let mut shape = Shape { gpus: 1, units: 0, priority: None };
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let fault = |wanted| Err(format!("{name}: expected {wanted}"));
        match &*name {
            "cards" => match value.parse() {
                Ok(gpus @ 1..=MAX_GPUS) => shape.gpus = gpus,
                _ => return fault("a number of GPUs from 1 to 64, as in cards=8"),
            },
            "units" => match value.parse() {
                Ok(units @ 1..) => shape.units = units,
                _ => return fault("units of each GPU, 1 or more, as in units=80"),
            },
            "priority" => match value.parse() {
                Ok(priority) => shape.priority = Some(priority),
                Err(_) => return fault("a pod's priority, as in priority=0"),
            },
            _ => return Err(format!("{name}: there are cards, units and priority")),
        }
    }
    if shape.units == 0 {
        return Err("units: missing; expected units of each GPU, as in units=80".to_owned());
    }
    Ok(shape)
}

fn request(asked: &Shape) -> Result<GpuRequest, String> {
    let request = GpuRequest::of_shape(asked.gpus, Units(asked.units), Cores::ZERO);
    request.ok_or_else(|| "units: too many".to_owned())
}

fn wire(proposal: moves::Proposal) -> Proposal {
    let wire_move = |proposed: ProposedMove| Move {
        namespace: proposed.namespace,
        name: proposed.name,
        workload: proposed.controller.map(|controller| controller.name).unwrap_or_default(),
        priority: proposed.priority,
        units: proposed.units,
        from_gpus: proposed.from,
        to: proposed.to.to_string(),
        to_gpus: proposed.to_gpus,
    };
    let moves = proposal.moves.into_iter().map(wire_move).collect();
    Proposal { node: proposal.node.to_string(), gpus: proposal.choice.indices(), moves }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Shape, String> {
        shape(&format!("/v1/moves?{query}").parse().unwrap())
    }

    #[test]
    fn a_shape_is_gpus_and_units_and_what_is_wrong_is_named() {
        assert_eq!(asked("units=80"), Ok(Shape { gpus: 1, units: 80, priority: None }));
        let eight = Shape { gpus: 8, units: 80, priority: Some(-5) };
        assert_eq!(asked("cards=8&units=80&priority=-5"), Ok(eight));
        for (query, field) in [
            ("", "units"),
            ("cards=8", "units"),
            ("units=0", "units"),
            ("units=x", "units"),
            ("cards=0&units=1", "cards"),
            ("cards=65&units=1", "cards"),
            ("units=1&priority=high", "priority"),
            ("units=1&node=a", "node"),
        ] {
            let error = asked(query).unwrap_err();
            assert!(error.starts_with(&format!("{field}: ")), "{query}: {error}");
        }
        let most = Shape { gpus: 64, units: u32::MAX, priority: None };
        assert_eq!(request(&most), Err("units: too many".to_owned()));
    }
}
