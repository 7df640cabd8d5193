//! Where keys and values lie in memory: the geometry of a block and the arena of frames.

mod arena;
mod frame_choice;
mod geometry;
mod layout;
mod windowed;

pub use arena::{ArenaError, KvArena};
pub use geometry::{FrameLayout, GeometryError, KvGeometry, Side, SubRecordPlace};
pub use layout::{KvLayout, LayoutError, PageBytes, RECORD_ALIGN, RecordPlace};
pub use windowed::WindowedLayers;
