use super::*;
use ebb_kernels::formats::FormatId as F;
use proptest::prelude::*;

const FORMATS: [(F, u64); 6] = [
    (F::F16, 160),
    (F::Int8, 83),
    (F::Int4, 43),
    (F::Kitty25, 28),
    (F::Kitty12, 26),
    (F::Int2, 23),
];

/// A page that starts at no loss; `losses` of the formats below 16 bit.
fn page(losses: &[f64]) -> Vec<Choice> {
    let losses = [0.0].iter().chain(losses);
    let choices = FORMATS
        .iter()
        .zip(losses)
        .map(|((format, bytes), loss)| Choice {
            format: *format,
            bytes: *bytes,
            loss: *loss,
        });
    choices.collect()
}

/// Losses that rise from format to format by these.
fn rising(by: &[f64]) -> Vec<Choice> {
    let mut sum = 0.0;
    let losses = by.iter().map(|x| {
        sum += x;
        sum
    });
    page(&losses.collect::<Vec<_>>())
}

/// Least loss within the budget, over all combinations.
fn brute_force(pages: &[Vec<Choice>], budget: u64) -> f64 {
    let Some((first, rest)) = pages.split_first() else {
        return 0.0;
    };
    let tries = first.iter().filter(|c| c.bytes <= budget);
    let tries = tries.map(|c| c.loss + brute_force(rest, budget - c.bytes));
    tries.fold(f64::INFINITY, f64::min)
}

/// The same by dynamic programming over bytes, for many pages.
fn by_bytes(pages: &[Vec<Choice>], budget: u64) -> f64 {
    let mut best = vec![0.0; budget as usize + 1];
    for page in pages {
        let of = |bytes: usize| {
            let fits = page.iter().filter(|c| c.bytes as usize <= bytes);
            let losses = fits.map(|c| c.loss + best[bytes - c.bytes as usize]);
            losses.fold(f64::INFINITY, f64::min)
        };
        best = (0..best.len()).map(of).collect();
    }
    best[budget as usize]
}

fn check(pages: &[Vec<Choice>], budget: u64, expected: f64) {
    let found = allocate(pages, budget).unwrap();
    assert!(found.bytes <= budget && found.proven, "{found:?}");
    assert_eq!(
        found.bytes,
        found.choices.iter().map(|c| c.bytes).sum::<u64>()
    );
    let off = (found.loss - expected).abs();
    assert!(
        off <= 1e-6 * expected.max(1e-12),
        "{} instead of {expected}",
        found.loss
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_combination_loses_less(
        losses in prop::collection::vec(prop::array::uniform5(0.0f64..1.0), 1..6),
        size in 0u32..6,
        share in 0.0f64..1.0,
    ) {
        // Some pages matter a million times as much as others, and all of them little.
        let pages: Vec<_> = losses.iter().enumerate().map(|(i, l)| {
            rising(&l.map(|x| x * 1e-7 * 10f64.powi((i as u32 * size % 7) as i32)))
        }).collect();
        let (least, most) = (23 * pages.len() as u64, 160 * pages.len() as u64);
        let budget = least + ((most - least) as f64 * share) as u64;
        check(&pages, budget, brute_force(&pages, budget));
    }
}

/// As many pages as models of 30 and of 80 layers have.
#[test]
fn a_whole_models_program_is_solved() {
    for pages in [60, 160] {
        solve_a_models(pages);
    }
}

fn solve_a_models(count: u64) {
    let mut state = 5u64;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let pages: Vec<_> = (0..count)
        .map(|_| {
            // Sensitivities spread over four orders of magnitude, as they do.
            let scale = 1e-6 * 10f64.powf(4.0 * next());
            rising(&[0.01, 1.0, 8.0, 3.0, 9.0].map(|x| x * scale * (0.5 + next())))
        })
        .collect();
    for mean in [24, 30, 43, 60, 100, 150] {
        let budget = count * mean;
        check(&pages, budget, by_bytes(&pages, budget));
    }
}

/// Interchangeable pages must not be searched in every permutation.
#[test]
fn many_equal_pages_are_no_harder() {
    let mut pages = vec![rising(&[0.01, 1.0, 8.0, 3.0, 9.0]); 40];
    pages.extend(vec![rising(&[0.02, 1.5, 2.0, 3.0, 4.0]); 20]);
    let budget = 60 * 30 + 7;
    check(&pages, budget, by_bytes(&pages, budget));
}

#[test]
fn ties_go_to_the_earlier_layers_and_are_counted() {
    let pages = vec![rising(&[1.0; 5]); 5];
    // Room for two pages at 16 bit beside three at the end.
    let found = allocate(&pages, 2 * 160 + 3 * 23).unwrap();
    let bytes: Vec<u64> = found.choices.iter().map(|c| c.bytes).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    assert!(found.ties > 0);
    assert!((found.loss - brute_force(&pages, 2 * 160 + 3 * 23)).abs() < 1e-9);
    // Pages of different worth trade nothing.
    let pages: Vec<_> = (1..=4).map(|i| rising(&[f64::from(i); 5])).collect();
    assert_eq!(allocate(&pages, 200).unwrap().ties, 0);
}

#[test]
fn a_budget_below_the_lowest_formats_says_what_they_take() {
    let pages = vec![rising(&[1.0; 5]); 3];
    let error = allocate(&pages, 68).unwrap_err();
    assert_eq!(
        error,
        BudgetError::Infeasible {
            least: 69,
            budget: 68
        }
    );
    assert!(error.to_string().contains("69") && error.to_string().contains("68"));
    assert_eq!(allocate(&pages, 69).unwrap().bytes, 69);
}

#[test]
fn a_budget_for_everything_loses_nothing() {
    let pages = vec![rising(&[1.0; 5]); 3];
    let found = allocate(&pages, 10_000).unwrap();
    assert_eq!((found.bytes, found.loss, found.ties), (480, 0.0, 0));
    // A format without loss is taken whatever the budget.
    let free = allocate(&[page(&[0.0, 0.0, 1.0, 2.0, 3.0])], 10_000).unwrap();
    assert_eq!(free.choices[0].format, F::Int4);
}
