//! The free amounts of one round in three views, which are updated together.

use crate::search::evict::elsewhere;
use crate::{Cause, Cluster, Picker, Place, Policy, Shape, Snapshot, Standard};

/// Free amounts and what finds places among them.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    pub(crate) cluster: Cluster,
    picker: Picker<Standard>,
}

impl Board {
    fn new(cluster: Cluster, state: &Snapshot, policy: &Policy) -> Self {
        let picker = Standard::picker(policy.placement, &state.expected, &cluster);
        Self { cluster, picker }
    }

    fn find(&mut self, shape: &Shape) -> Option<Place> {
        self.picker.find(&self.cluster, shape)
    }

    /// Places for all shapes together, or none. Nothing stays taken.
    fn find_all(&mut self, shapes: &[Shape]) -> Option<Vec<Place>> {
        let mut places = Vec::new();
        for shape in shapes {
            let Some(place) = self.find(shape) else { break };
            self.cluster.take(&place);
            places.push(place);
        }
        for place in places.iter().rev() {
            self.cluster.give_back(place);
        }
        if places.len() < shapes.len() && shapes.len() > 1 {
            let mut cluster = self.cluster.clone();
            return cluster.fill_places(shapes);
        }
        (places.len() == shapes.len()).then_some(places)
    }
}

/// The free amounts now, those of them that are not reserved, and those after all stopping tasks have ended.
#[derive(Clone, Debug)]
pub(crate) struct Boards {
    pub(crate) open: Board,
    /// `None` while nothing is kept.
    unreserved: Option<Board>,
    /// Without what has been promised to blocked tasks.
    pub(crate) later: Cluster,
}

impl Boards {
    pub(crate) fn new(state: &Snapshot, policy: &Policy) -> Self {
        let open = Cluster::of(state);
        let mut later = open.clone();
        let by_name = later.by_name();
        for running in state.running.iter().filter(|running| running.stopping.is_some()) {
            if let Some(place) = later.place_of(&by_name, running) {
                later.give_back(&place);
            }
        }
        let mut boards = Self { open: Board::new(open, state, policy), unreserved: None, later };
        let moving = state.running.iter().filter(|running| running.stopping == Some(Cause::Consolidate));
        for running in moving {
            let place = boards.later.place_of(&by_name, running);
            if let Some(new) = place.and_then(|place| elsewhere(&boards.open.cluster, &place)) {
                boards.later.take(&new);
                boards.keep(&new);
            }
        }
        boards
    }

    /// Places for all shapes, on what is kept too if `on_reserved`.
    pub(crate) fn find_all(&mut self, shapes: &[Shape], on_reserved: bool) -> Option<Vec<Place>> {
        match &mut self.unreserved {
            Some(unreserved) if !on_reserved => unreserved.find_all(shapes),
            _ => self.open.find_all(shapes),
        }
    }

    pub(crate) fn take(&mut self, place: &Place) {
        self.open.cluster.take(place);
        if let Some(unreserved) = &mut self.unreserved {
            unreserved.cluster.take(place);
        }
        self.later.take(place);
    }

    /// Keeps what is free of a place for a task that will start there.
    pub(crate) fn keep(&mut self, place: &Place) {
        self.reservable().hold(place);
    }

    /// The amounts that are not reserved, to reserve more of them.
    pub(crate) fn reservable(&mut self) -> &mut Cluster {
        &mut self.unreserved.get_or_insert_with(|| self.open.clone()).cluster
    }
}
