//! How many of each owner's due calls a pull worker gets: owners take turns.
//!
//! Of N owners with due calls each gets one in N, whatever the priorities of its calls are: these order the owner's own.

/// Shares places out among owners: one each in their order, again and again. `due`: how many calls of each are due. Says how many each
/// gets, and who gets the last one.
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
