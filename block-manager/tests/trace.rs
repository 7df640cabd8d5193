//! How much memory real request lengths leave reserved and empty.

mod common;

use common::{
    config,
    trace::{azure_conversations, replay},
};

#[test]
fn at_most_2_percent_is_reserved_without_a_token_over_the_azure_trace() {
    let requests = azure_conversations();
    assert_eq!(requests.len(), 19_366);
    for places in [16, 64, 256] {
        let waste = replay(&requests, places, config(1 << 20, 2));
        println!(
            "{places} running: {:.2} % reserved without a token on average, {:.2} % at worst, {} \
             steps",
            100.0 * waste.mean,
            100.0 * waste.worst,
            waste.steps,
        );
        assert!(waste.mean <= 0.02, "{waste:?}");
        // A handful of short sequences can be above for a moment; a busy server never is.
        assert!(places < 64 || waste.worst <= 0.02, "{waste:?}");
    }
}
