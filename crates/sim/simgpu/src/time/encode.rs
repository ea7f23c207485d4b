//! Encodes an engine's state as words, so that processes can share it.

use super::engine::{Channel, Engine, Passed, Process};

/// Words before the lists.
const HEAD: usize = 12;
const PER_PROCESS: usize = 4;
const PER_CONTEXT: usize = 1;
const PER_CHANNEL: usize = 6;
const PER_PASSED: usize = 3;

impl Engine {
    /// The number of words that [`Engine::encode`] writes.
    pub(super) fn words(&self) -> usize {
        HEAD + self.processes.len() * PER_PROCESS
            + self.contexts.len() * PER_CONTEXT
            + self.channels.len() * PER_CHANNEL
            + self.passed.len() * PER_PASSED
    }

    pub(super) fn encode(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(self.words());
        words.extend([self.now_ns, self.busy_ns]);
        words.extend(self.busy_samples_ns);
        words.extend([self.slice_left_ns, self.switch_left_ns, self.turn as u64, self.next_channel]);
        let counts = [self.processes.len(), self.contexts.len(), self.channels.len(), self.passed.len()];
        words.extend(counts.map(|count| count as u64));
        for p in &self.processes {
            words.extend([p.slot as u64, p.gpu_ns, p.samples_ns[0], p.samples_ns[1]]);
        }
        words.extend(&self.contexts);
        for c in &self.channels {
            words.extend([c.id, c.context, c.ring as u64, c.head, c.left_ns, c.copy_left_ns]);
        }
        for p in &self.passed {
            words.extend([p.ring as u64, p.seq, p.at_ns]);
        }
        words
    }

    /// `None` if these are not the words of an engine. No words are an engine that has done nothing yet.
    pub(super) fn decode(words: &[u64]) -> Option<Self> {
        if words.is_empty() {
            return Some(Self::default());
        }
        let (head, rest) = words.split_first_chunk::<HEAD>()?;
        let [processes, contexts, channels, passed] = [8, 9, 10, 11].map(|i| head[i] as usize);
        let (processes, rest) = rest.split_at_checked(processes.checked_mul(PER_PROCESS)?)?;
        let (contexts, rest) = rest.split_at_checked(contexts.checked_mul(PER_CONTEXT)?)?;
        let (channels, rest) = rest.split_at_checked(channels.checked_mul(PER_CHANNEL)?)?;
        let (passed, _) = rest.split_at_checked(passed.checked_mul(PER_PASSED)?)?;
        let process = |w: &[u64]| Process { slot: w[0] as usize, gpu_ns: w[1], samples_ns: [w[2], w[3]] };
        let channel = |w: &[u64]| Channel {
            id: w[0],
            context: w[1],
            ring: w[2] as usize,
            head: w[3],
            left_ns: w[4],
            copy_left_ns: w[5],
        };
        Some(Self {
            now_ns: head[0],
            busy_ns: head[1],
            busy_samples_ns: [head[2], head[3]],
            slice_left_ns: head[4],
            switch_left_ns: head[5],
            turn: head[6] as usize,
            next_channel: head[7],
            processes: processes.chunks_exact(PER_PROCESS).map(process).collect(),
            contexts: contexts.to_vec(),
            channels: channels.chunks_exact(PER_CHANNEL).map(channel).collect(),
            passed: passed
                .chunks_exact(PER_PASSED)
                .map(|w| Passed { ring: w[0] as usize, seq: w[1], at_ns: w[2] })
                .collect(),
        })
    }
}
