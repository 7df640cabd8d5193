//! What a chat template asks of the engine while it renders.

use ebb_models::tokenizer::RenderHost;
use parking_lot::Mutex;

use super::text_queue::Wanted;
use crate::client_memory::{ClientMemoryFull, Held};

/// Counts what a rendering holds, as long as its caller waits.
pub(super) struct Rendering {
    wanted: Wanted,
    /// What it holds, and why it could not hold more.
    memory: Mutex<(Held, Option<ClientMemoryFull>)>,
}

impl Rendering {
    pub(super) fn new(wanted: Wanted, memory: Held) -> Self {
        Self {
            wanted,
            memory: Mutex::new((memory, None)),
        }
    }

    /// Why the rendering could not hold what it needs, if so.
    pub(super) fn refusal(&self) -> Option<ClientMemoryFull> {
        self.memory.lock().1
    }
}

impl RenderHost for Rendering {
    fn is_wanted(&self) -> bool {
        !self.wanted.is_over()
    }

    fn hold(&self, bytes: usize) -> bool {
        let (held, refusal) = &mut *self.memory.lock();
        *refusal = held.grow(bytes).err();
        refusal.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_memory::ClientMemory;

    #[test]
    fn what_a_rendering_holds_is_counted_until_it_ends() {
        let memory = ClientMemory::new(100);
        let rendering = Rendering::new(Wanted::always(), memory.hold_nothing());
        assert!(rendering.is_wanted() && rendering.hold(60) && rendering.hold(40));
        assert_eq!((memory.held(), rendering.refusal()), (100, None));
        assert!(!rendering.hold(1));
        assert_eq!(rendering.refusal().map(|full| full.bytes), Some(1));
        drop(rendering);
        assert_eq!(memory.held(), 0);
    }
}
