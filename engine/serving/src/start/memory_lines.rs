//! What a start tells of memory.

use crate::device::gib;

/// A line for the weights of each format, whose bytes are given, for the KV cache, and for what
/// else is in use on the device, of `in_use` bytes in all.
pub(super) fn memory_lines(
    weights: &[(String, u64)],
    kv_pool: u64,
    in_use: Option<u64>,
) -> Vec<String> {
    let line = |bytes: u64, what: &str| format!("{:>8.2} GiB  {what}", gib(bytes));
    let of_format = |(name, bytes): &(String, u64)| line(*bytes, &format!("weights, {name}"));
    let mut lines: Vec<String> = weights.iter().map(of_format).collect();
    lines.push(line(kv_pool, "KV cache"));
    if let Some(in_use) = in_use {
        let told = weights.iter().map(|(_, bytes)| bytes).sum::<u64>() + kv_pool;
        let what = "else in use on the device, by other programs too";
        lines.push(line(in_use.saturating_sub(told), what));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_a_line() {
        let weights = vec![("int4".to_owned(), 3 << 30), ("bf16".to_owned(), 1 << 29)];
        let lines = [
            "    3.00 GiB  weights, int4",
            "    0.50 GiB  weights, bf16",
            "    4.00 GiB  KV cache",
            "    0.25 GiB  else in use on the device, by other programs too",
        ];
        let in_use = (31 << 30) / 4;
        assert_eq!(memory_lines(&weights, 4 << 30, Some(in_use)), lines);
        assert_eq!(memory_lines(&weights, 4 << 30, None), lines[..3]);
    }
}
