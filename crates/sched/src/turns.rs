//! Fair shares of a pull worker's claim: owners take turns.
//!
//! Each owner with due calls gets the same number of calls. Priorities only order the calls of one owner.

/// Gives places to owners in turns: one to each, in their order, until places or calls run out. `due`: how many calls
/// of each owner are due. Returns how many places each owner gets, and which owner gets the last place.
pub fn shares(due: &[usize], places: usize) -> (Vec<usize>, Option<usize>) {
    let mut shares = vec![0; due.len()];
    let mut waiting: Vec<_> = (0..due.len()).collect();
    let (mut left, mut last) = (places, None);
    loop {
        waiting.retain(|owner| shares[*owner] < due[*owner]);
        if left == 0 || waiting.is_empty() {
            return (shares, last);
        }
        for owner in waiting.iter().take(left) {
            shares[*owner] += 1;
            last = Some(*owner);
        }
        left = left.saturating_sub(waiting.len());
    }
}
