//! Floors for a byte budget: the integer program of PM-KVQ (arXiv 2505.18610, section 3.2), over
//! (layer, side) × format; [`allocate_per_layer`] is over layers, as published.
//!
//! Minimise Σ loss(page, format) x(page, format) with one format a page and Σ bytes(format) x(page,
//! format) within the budget, x ∈ {0, 1}: a multiple-choice knapsack, solved by branch and bound
//! (good_lp over microlp). The greedy walk along the pages' hulls gives the first solution and, its
//! last step taken in part, the bound of the relaxation; formats that lose more alone than the
//! whole greedy solution are left out, and losses are scaled by it, so that the solver's tolerances
//! mean the same at every width.

use good_lp::solvers::SolutionStatus;
use good_lp::{
    Expression, ResolutionError, Solution, SolverModel, WithTimeLimit, constraint, microlp,
    variable, variables,
};
use thiserror::Error;

use super::{Choice, hull};

mod per_layer;

pub use per_layer::allocate_per_layer;

/// Seconds that the solver may take. Models of 32 layers take well below one; what is found by then
/// is within the gap that [`Allocation`] reports.
const SECONDS_MAX: f64 = 10.0;

/// Losses that differ by less than this share of the whole are equal.
const EQUAL: f64 = 1e-9;

/// A format for each page.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// What each page gets.
    pub choices: Vec<Choice>,
    /// Their bytes.
    pub bytes: u64,
    /// Their losses added up.
    pub loss: f64,
    /// No allocation within the budget loses less than this.
    pub bound: f64,
    /// Whether the solver proved that none is better.
    pub proven: bool,
    /// Pairs of pages that could trade formats at the same loss; the earlier one has the more
    /// bytes.
    pub ties: usize,
}

/// Why there is no allocation.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BudgetError {
    /// Too small.
    #[error(
        "every page at its lowest format takes {least} bytes a block, above the budget of {budget}"
    )]
    Infeasible {
        /// Bytes of a block at least.
        least: u64,
        /// Bytes given.
        budget: u64,
    },
    /// Keys and values share no width.
    #[error("no width is one of keys and of values: keys can have {k} bits, values {v}")]
    NoCommonWidth {
        /// Bits of the formats of keys.
        k: String,
        /// Bits of the formats of values.
        v: String,
    },
    /// The solver failed.
    #[error("the solver of the integer program failed: {0}")]
    Solver(String),
}

/// The formats of the least loss whose bytes come to `budget` at most. `pages[i]` are the choices
/// of page `i`, not none. Where two allocations lose the same, earlier pages have the more bytes.
///
/// # Errors
/// When no allocation fits, or the solver fails.
pub fn allocate(pages: &[Vec<Choice>], budget: u64) -> Result<Allocation, BudgetError> {
    let pages: Vec<Vec<Choice>> = pages.iter().map(|p| worth_having(p)).collect();
    let ends = pages.iter().map(|p| p.last().map_or(0, |c| c.bytes));
    let least: u64 = ends.sum();
    if least > budget {
        return Err(BudgetError::Infeasible { least, budget });
    }
    let (greedy, bound) = relaxed(&pages, budget);
    let greedy_loss = sum(&greedy);
    let (mut found, proven) = if greedy_loss <= bound {
        (greedy, true)
    } else {
        solve(&pages, budget, &greedy)?
    };
    let ties = settle_ties(&pages, &mut found);
    let loss = sum(&found);
    Ok(Allocation {
        bytes: found.iter().map(|c| c.bytes).sum(),
        loss,
        bound: if proven { loss } else { bound },
        proven,
        ties,
        choices: found,
    })
}

fn sum(choices: &[Choice]) -> f64 {
    choices.iter().map(|c| c.loss).sum()
}

/// A page's choices from the most bytes to the fewest, without those that another one beats: a
/// format that loses no less at no fewer bytes. A lower format never counts as better than a higher
/// one, as in [`hull`].
fn worth_having(choices: &[Choice]) -> Vec<Choice> {
    let mut sorted = choices.to_vec();
    sorted.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.loss.total_cmp(&b.loss)));
    let mut kept: Vec<Choice> = Vec::new();
    for mut next in sorted {
        if let Some(last) = kept.last() {
            if next.bytes == last.bytes {
                continue;
            }
            next.loss = next.loss.max(last.loss);
            if next.loss == last.loss {
                kept.pop();
            }
        }
        kept.push(next);
    }
    kept
}

/// Walks down the hulls until the bytes fit; also the loss if the last step were taken in part
/// only, which is the optimum of the relaxation x ∈ [0, 1].
fn relaxed(pages: &[Vec<Choice>], budget: u64) -> (Vec<Choice>, f64) {
    let hulls: Vec<Vec<Choice>> = pages.iter().map(|p| hull(p)).collect();
    let mut steps: Vec<(f64, usize, Choice, Choice)> = Vec::new();
    for (page, hull) in hulls.iter().enumerate() {
        steps.extend(hull.windows(2).map(|pair| {
            let (from, to) = (pair[0], pair[1]);
            let price = (to.loss - from.loss) / (from.bytes - to.bytes) as f64;
            (price, page, from, to)
        }));
    }
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut at: Vec<Choice> = hulls.iter().map(|h| h[0]).collect();
    let mut bytes: u64 = at.iter().map(|c| c.bytes).sum();
    let mut bound = sum(&at);
    for (price, page, from, to) in steps {
        if bytes <= budget {
            break;
        }
        let saved = from.bytes - to.bytes;
        bound += price * saved.min(bytes - budget) as f64;
        bytes -= saved;
        at[page] = to;
    }
    (at, bound)
}

/// Pages of the same choices: the solver decides how many of them get which, not which ones, so
/// that it does not search their permutations.
struct Group {
    pages: Vec<usize>,
    choices: Vec<Choice>,
}

fn groups(pages: &[Vec<Choice>]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (page, choices) in pages.iter().enumerate() {
        match groups.iter_mut().find(|g| g.choices == *choices) {
            Some(group) => group.pages.push(page),
            None => groups.push(Group {
                pages: vec![page],
                choices: choices.clone(),
            }),
        }
    }
    groups
}

/// Asks the solver, which starts from `first`. Tells whether it proved its answer.
fn solve(
    pages: &[Vec<Choice>],
    budget: u64,
    first: &[Choice],
) -> Result<(Vec<Choice>, bool), BudgetError> {
    let scale = sum(first);
    let unit = pages
        .iter()
        .flatten()
        .fold(0, |unit, c| gcd(unit, c.bytes))
        .max(1);
    let mut names = variables!();
    let (mut loss, mut bytes) = (Expression::from(0.0), Expression::from(0.0));
    let mut counts = Vec::new();
    let groups = groups(pages);
    for group in &groups {
        let possible = group.choices.iter();
        let possible = possible.filter(|c| c.loss <= scale * (1.0 + EQUAL));
        let of_group: Vec<_> = possible
            .map(|choice| {
                let start = group.pages.iter().filter(|p| first[**p] == *choice).count();
                let count = variable().integer().min(0).max(group.pages.len() as f64);
                let count = names.add(count.initial(start as f64));
                loss += count * (choice.loss / scale);
                bytes += count * (choice.bytes / unit) as f64;
                (count, *choice)
            })
            .collect();
        counts.push(of_group);
    }
    let mut problem = names
        .minimise(loss)
        .using(microlp)
        .with_time_limit(SECONDS_MAX)
        .with(constraint!(bytes <= (budget / unit) as f64));
    for (group, of_group) in groups.iter().zip(&counts) {
        let all: Expression = of_group.iter().map(|(count, _)| *count).sum();
        problem = problem.with(constraint!(all == group.pages.len() as f64));
    }
    let solution = match problem.solve() {
        Ok(solution) => solution,
        Err(ResolutionError::Infeasible) => return Ok((first.to_vec(), false)),
        Err(error) => return Err(BudgetError::Solver(error.to_string())),
    };
    let proven = matches!(solution.status(), SolutionStatus::Optimal);
    // The most bytes first, to the earlier pages.
    let mut found = first.to_vec();
    let mut given = true;
    for (group, of_group) in groups.iter().zip(&counts) {
        let repeated = of_group.iter().flat_map(|(count, choice)| {
            let times = solution.value(*count).round().max(0.0) as usize;
            std::iter::repeat_n(*choice, times)
        });
        let formats: Vec<Choice> = repeated.take(group.pages.len() + 1).collect();
        given &= formats.len() == group.pages.len();
        for (page, choice) in group.pages.iter().zip(formats) {
            found[*page] = choice;
        }
    }
    // Rounded by the solver's tolerance, an answer could be a hair outside; then the greedy one
    // stands.
    let fits = found.iter().map(|c| c.bytes).sum::<u64>() <= budget;
    match given && fits && sum(&found) <= scale * (1.0 + EQUAL) {
        true => Ok((found, proven)),
        false => Ok((first.to_vec(), false)),
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Gives the more bytes to the earlier of two pages that could trade formats at the same loss;
/// counts such pairs.
fn settle_ties(pages: &[Vec<Choice>], found: &mut [Choice]) -> usize {
    let whole = sum(found);
    let mut ties = 0;
    for i in 0..found.len() {
        for j in i + 1..found.len() {
            let (a, b) = (found[i], found[j]);
            let at = |page: usize, like: Choice| {
                let same = pages[page]
                    .iter()
                    .find(|c| (c.format, c.bytes) == (like.format, like.bytes));
                same.copied()
            };
            let (Some(new_a), Some(new_b)) = (at(i, b), at(j, a)) else {
                continue;
            };
            let change = new_a.loss + new_b.loss - a.loss - b.loss;
            if a.format == b.format || change.abs() > whole * EQUAL {
                continue;
            }
            ties += 1;
            if a.bytes < b.bytes {
                (found[i], found[j]) = (new_a, new_b);
            }
        }
    }
    ties
}

#[cfg(test)]
mod tests;
