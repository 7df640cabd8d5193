//! How many connections the process's file descriptors allow.
//!
//! Connections are limited to fewer than the system would let us open, so that probes, scrapes and
//! files always find a descriptor.

use super::connections::Limits;

/// Descriptors that are never a connection's: model files, devices, logs, the runtime.
const FILES: usize = 128;
/// Connections of the metrics port.
const HTTP: usize = 64;
/// Ports that are listened on.
const PORTS: usize = 3;
/// Connections that may still be closing while newer ones have their places, per port.
pub(super) const CLOSING: usize = 16;
/// Connections of the gRPC port, and as many of the HTTP API's, where nothing else is asked for.
pub const DEFAULT_MAX_CONNECTIONS: usize = 1024;

/// Connections that clients may have. Zero stands for no limit but what descriptors allow.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// On the gRPC port, and as many on the HTTP API's.
    pub max: usize,
    /// Of those, from one address; none for half of `max`.
    pub per_peer: Option<usize>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: DEFAULT_MAX_CONNECTIONS,
            per_peer: None,
        }
    }
}

/// The limits of a process with so many descriptors: of each of the two ports for clients, gRPC and
/// HTTP, and of the port for metrics.
pub(super) fn limits(asked: ConnectionLimits, descriptors: usize) -> (Limits, Limits) {
    let files = FILES.min(descriptors / 4);
    let http = HTTP.min(descriptors / 8).max(2);
    let possible = descriptors.saturating_sub(files + http + PORTS * CLOSING) / 2;
    let possible = possible.max(1);
    let total = match asked.max {
        0 => possible,
        max => max.min(possible),
    };
    if asked.max > possible {
        tracing::warn!(
            "--max-connections {} is more than {descriptors} file descriptors allow: {total} are \
             served on each port; raise the limit of open files (ulimit -n)",
            asked.max
        );
    }
    let per_peer = match asked.per_peer {
        None => total.div_ceil(2),
        Some(0) => total,
        Some(n) => n.min(total),
    };
    let clients = Limits {
        total,
        per_peer,
        spares_busy: true,
    };
    let http = Limits {
        total: http,
        per_peer: http.div_ceil(2),
        spares_busy: false,
    };
    (clients, http)
}

/// The descriptors that this process may have open.
pub(super) fn allowed() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    parse(&limits)
}

/// The soft limit; the least that systems give where it cannot be read.
fn parse(limits: &str) -> usize {
    const LEAST: usize = 1024;
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    match line.and_then(|l| l.split_whitespace().nth(3)) {
        Some("unlimited") => usize::MAX,
        Some(n) => n.parse().unwrap_or(LEAST),
        None => LEAST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_and_files_keep_descriptors_whatever_is_asked_for() {
        for descriptors in [16, 64, 256, 1024, 1 << 20, usize::MAX] {
            for max in [0, 1, 100, 1024, 1 << 30] {
                for per_peer in [None, Some(0), Some(7), Some(1 << 40)] {
                    let asked = ConnectionLimits { max, per_peer };
                    let (grpc, http) = limits(asked, descriptors);
                    assert!(max == 0 || grpc.total <= max);
                    assert!(1 <= grpc.per_peer && grpc.per_peer <= grpc.total);
                    assert!(1 <= http.per_peer && http.per_peer <= http.total);
                    if descriptors >= 256 {
                        let most = 2 * grpc.total + http.total + PORTS * CLOSING;
                        assert!(most + 64 <= descriptors, "{asked:?} of {descriptors}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_systems_table_is_read() {
        let text = "Limit Soft Hard Units\nMax open files            2048   524288   files\n";
        assert_eq!(parse(text), 2048);
        assert_eq!(parse(&text.replace("2048", "unlimited")), usize::MAX);
        assert_eq!(parse(""), 1024);
        assert!(allowed() > 16);
    }
}
