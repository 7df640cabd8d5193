//! Who is connected to one port, and who makes way when it is full.
//!
//! A newcomer is let in as long as somebody is idle: of those that have never asked for anything
//! the oldest is closed, else whoever has been idle longest. First within the newcomer's own
//! address, if that has its fill, then among all.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

/// Connections of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) total: usize,
    /// From one address (IPv6: from one /64 network, which is what one host has).
    pub(super) per_peer: usize,
    /// Whether a newcomer is refused while all are busy; else the oldest makes way even so.
    pub(super) spares_busy: bool,
}

/// Why the server closed a connection or did not let one in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// It was idle and made way.
    MadeWay,
    /// It did not finish its handshake in time.
    NoHandshake,
    /// It did not ask for anything in time.
    NoRequest,
    /// It did not read an answer in time.
    Unread,
    /// All others are busy.
    Refused,
    /// Its TLS handshake failed.
    Tls,
}

impl CloseReason {
    pub(super) const ALL: [Self; 6] = [
        Self::MadeWay,
        Self::NoHandshake,
        Self::NoRequest,
        Self::Unread,
        Self::Refused,
        Self::Tls,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::MadeWay => "made_way",
            Self::NoHandshake => "no_handshake",
            Self::NoRequest => "no_request",
            Self::Unread => "unread",
            Self::Refused => "refused",
            Self::Tls => "tls",
        }
    }
}

/// The connections of one port.
pub(super) struct Connections {
    limits: Limits,
    table: Mutex<Table>,
    accepted: AtomicU64,
    closed: [AtomicU64; CloseReason::ALL.len()],
}

#[derive(Default)]
struct Table {
    entries: FxHashMap<u64, Entry>,
    peers: FxHashMap<IpAddr, usize>,
    /// Counts events: the order in which connections came and fell idle.
    now: u64,
}

struct Entry {
    peer: IpAddr,
    /// Calls that run.
    calls: usize,
    /// Whether there was one ever.
    called: bool,
    /// When the last call ended, or the connection came.
    idle_since: u64,
    close: oneshot::Sender<()>,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if let Some(count) = self.peers.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&entry.peer);
            }
        }
        Some(entry)
    }

    /// Who makes way, of one address or of all.
    fn victim(&self, of: Option<IpAddr>, spares_busy: bool) -> Option<u64> {
        let of_peer = |e: &Entry| of.is_none_or(|peer| e.peer == peer);
        let candidates = self
            .entries
            .iter()
            .filter(|(_, e)| of_peer(e) && (e.calls == 0 || !spares_busy));
        let order = |(id, e): &(&u64, &Entry)| (e.calls > 0, e.called, e.idle_since, **id);
        candidates.min_by_key(order).map(|(id, _)| *id)
    }
}

/// The address that counts as one peer.
fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

impl Connections {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            table: Mutex::default(),
            accepted: AtomicU64::new(0),
            closed: Default::default(),
        })
    }

    /// Lets a newcomer in, if need be in somebody's place; none when all are busy.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let peer = peer_of(address);
        let mut table = self.table.lock();
        let theirs = table.peers.get(&peer).copied().unwrap_or(0);
        let fills = if theirs >= self.limits.per_peer {
            Some(Some(peer))
        } else if table.entries.len() >= self.limits.total {
            Some(None)
        } else {
            None
        };
        if let Some(of) = fills {
            let Some(victim) = table.victim(of, self.limits.spares_busy) else {
                drop(table);
                self.count(CloseReason::Refused);
                return None;
            };
            self.close(&mut table, victim);
        }
        let id = table.tick();
        let (close, closing) = oneshot::channel();
        let entry = Entry {
            peer,
            calls: 0,
            called: false,
            idle_since: id,
            close,
        };
        table.entries.insert(id, entry);
        *table.peers.entry(peer).or_insert(0) += 1;
        drop(table);
        let key = Arc::new(Key {
            connections: self.clone(),
            id,
            called: AtomicBool::new(false),
        });
        Some(Place { key, closing })
    }

    /// Closes one idle connection, if there is one: the process is out of descriptors.
    pub(super) fn close_idle(&self) {
        let mut table = self.table.lock();
        if let Some(victim) = table.victim(None, self.limits.spares_busy) {
            self.close(&mut table, victim);
        }
    }

    fn close(&self, table: &mut Table, id: u64) {
        if let Some(entry) = table.remove(id) {
            self.count(CloseReason::MadeWay);
            let _ = entry.close.send(());
        }
    }

    pub(super) fn count(&self, why: CloseReason) {
        self.closed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limits.total
    }

    pub(super) fn open(&self) -> usize {
        self.table.lock().entries.len()
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn closed(&self) -> [(&'static str, u64); CloseReason::ALL.len()] {
        CloseReason::ALL.map(|why| {
            let count = self.closed[why as usize].load(Ordering::Relaxed);
            (why.as_str(), count)
        })
    }
}

/// A connection's place, until it is dropped.
pub(super) struct Place {
    key: Arc<Key>,
    /// Resolves when it has to make way; an error never comes before that.
    pub(super) closing: oneshot::Receiver<()>,
}

impl Place {
    pub(super) fn key(&self) -> Arc<Key> {
        self.key.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.key.connections.table.lock().remove(self.key.id);
    }
}

/// Names a connection to its table.
pub(super) struct Key {
    connections: Arc<Connections>,
    id: u64,
    /// Known here, too, when the table has forgotten it.
    called: AtomicBool,
}

impl Key {
    /// A call begins; it runs until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        self.called.store(true, Ordering::Relaxed);
        if let Some(entry) = self.connections.table.lock().entries.get_mut(&self.id) {
            entry.calls += 1;
            entry.called = true;
        }
        Running(self.clone())
    }

    /// A call that does not keep the connection from making way.
    pub(super) fn call_in_passing(&self) {
        self.called.store(true, Ordering::Relaxed);
        if let Some(entry) = self.connections.table.lock().entries.get_mut(&self.id) {
            entry.called = true;
        }
    }

    /// Whether there was a call ever.
    pub(super) fn called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }
}

/// A call of a connection.
pub(super) struct Running(Arc<Key>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut table = self.0.connections.table.lock();
        let now = table.tick();
        if let Some(entry) = table.entries.get_mut(&self.0.id) {
            entry.calls -= 1;
            entry.idle_since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(total: usize, per_peer: usize, spares_busy: bool) -> Arc<Connections> {
        Connections::new(Limits {
            total,
            per_peer,
            spares_busy,
        })
    }

    fn host(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn closed(place: &mut Place) -> bool {
        place.closing.try_recv().is_ok()
    }

    #[test]
    fn silent_ones_make_way_first_then_whoever_was_idle_longest() {
        let table = table(4, 4, true);
        let mut places: Vec<_> = (0..4).map(|i| table.admit(host(i)).unwrap()).collect();
        let busy = places[0].key().begin();
        drop(places[1].key().begin());
        drop(places[2].key().begin());
        // The fourth has said nothing, though it is the youngest.
        for victim in [3, 1, 2] {
            let newcomer = table.admit(host(9)).expect("somebody is idle");
            assert!(closed(&mut places[victim]), "{victim}");
            std::mem::forget(newcomer.key().begin());
            std::mem::forget(newcomer);
        }
        assert!(table.admit(host(9)).is_none() && !closed(&mut places[0]));
        drop(busy);
        assert!(table.admit(host(9)).is_some() && closed(&mut places[0]));
        assert_eq!(table.closed()[0], ("made_way", 4));
        assert_eq!(table.closed()[4], ("refused", 1));
    }

    #[test]
    fn an_address_that_has_its_fill_closes_its_own() {
        let table = table(10, 2, true);
        let mut other = table.admit(host(1)).unwrap();
        let mut first = table.admit(host(2)).unwrap();
        let second = table.admit(host(2)).unwrap();
        let third = table.admit(host(2)).unwrap();
        assert!(closed(&mut first) && !closed(&mut other));
        let (_a, _b) = (second.key().begin(), third.key().begin());
        assert!(table.admit(host(2)).is_none() && !closed(&mut other));
        assert!(table.admit(host(1)).is_some());
    }

    #[test]
    fn places_come_back() {
        let table = table(3, 3, true);
        for _ in 0..3 {
            let places: Vec<_> = (0..3).map(|i| table.admit(host(i)).unwrap()).collect();
            let calls: Vec<_> = places.iter().map(|p| p.key().begin()).collect();
            assert_eq!(table.open(), 3);
            // Calls may outlive their connection.
            drop(places);
            drop(calls);
            assert_eq!(table.open(), 0);
        }
        assert!(table.table.lock().peers.is_empty());
    }

    #[test]
    fn where_none_is_spared_the_newcomer_always_comes_in() {
        let table = table(2, 2, false);
        let mut old = table.admit(host(1)).unwrap();
        let new = table.admit(host(1)).unwrap();
        let _calls = (old.key().begin(), new.key().begin());
        assert!(table.admit(host(1)).is_some() && closed(&mut old));
    }

    #[test]
    fn a_host_is_one_peer_whatever_it_calls_itself() {
        let peer = |s: &str| peer_of(s.parse().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), host(1));
        assert_eq!(peer("2001:db8:1:2:3::4"), peer("2001:db8:1:2:5::6"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
    }
}
