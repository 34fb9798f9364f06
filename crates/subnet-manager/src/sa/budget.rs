//! How much work a port may cause: a token bucket for each.

use std::time::Duration;

use ib_wire::{Guid, Status};

use super::guid_map::GuidMap;

/// Work units that a port may use per second in the long run. Examining a record is one: this is enough for 65,536 path
/// queries, or for 3 tables of all ports of 11,664 hosts.
const RATE: u64 = 1 << 18;
/// Work units that a port may use at once. Beyond, its requests wait or get BUSY, so that no port uses up the time of others.
const BURST: u64 = 1 << 20;
/// Work units of a request besides those of its records: receiving and answering it.
const REQUEST: u64 = 4;
const NANOSECONDS: u64 = 1_000_000_000;
/// Work units that must be there again before a request that found too few is tried once more.
const RECOVERED: u64 = BURST / 2;
/// Number of buckets at which those are removed that are full again.
const BUCKETS_MAX: usize = 1 << 16;

/// The buckets of all ports.
#[derive(Debug, Default)]
pub(super) struct QueryBudget {
    /// What is missing in each bucket; ports that are not listed have a full one.
    spent: GuidMap<Spent>,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    units: u64,
    /// When it was so.
    at: Duration,
}

impl Spent {
    fn at(self, now: Duration) -> u64 {
        let since = now.saturating_sub(self.at);
        let fraction = u64::from(since.subsec_nanos()) * RATE / NANOSECONDS;
        self.units.saturating_sub(since.as_secs().saturating_mul(RATE).saturating_add(fraction))
    }
}

impl QueryBudget {
    /// The number of records that may be examined for a request of a port.
    ///
    /// # Errors
    ///
    /// BUSY if not even the request itself may be handled.
    pub fn left(&self, now: Duration, port: Guid) -> Result<usize, Status> {
        let spent = self.spent.get(&port).map_or(0, |spent| spent.at(now));
        let left = BURST.checked_sub(spent + REQUEST).ok_or(Status::BUSY)?;
        Ok(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// When a request of a port may be tried again for which too little was left.
    pub fn recovers_at(&self, now: Duration, port: Guid) -> Duration {
        let spent = self.spent.get(&port).map_or(0, |spent| spent.at(now));
        let missing = spent.saturating_sub(BURST - RECOVERED);
        now + Duration::from_nanos((missing * NANOSECONDS).div_ceil(RATE))
    }

    /// Accounts for a request and the records that were examined for it.
    pub fn spend(&mut self, now: Duration, port: Guid, examined: usize) {
        let after = |before: u64| Spent { units: BURST.min(before + REQUEST + examined as u64), at: now };
        if let Some(spent) = self.spent.get_mut(&port) {
            *spent = after(spent.at(now));
            return;
        }
        if self.spent.len() >= BUCKETS_MAX {
            self.spent.retain(|_, spent| spent.at(now) > 0);
        }
        self.spent.insert(port, after(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Guid = match Guid::from_wire(7) {
        Some(guid) => guid,
        None => unreachable!(),
    };

    #[test]
    fn a_port_is_busy_when_its_bucket_is_empty() {
        let mut budget = QueryBudget::default();
        let start = Duration::from_secs(100);
        let mut requests = 0;
        while budget.left(start, PORT).is_ok() {
            budget.spend(start, PORT, 0);
            requests += 1;
        }
        assert_eq!(requests, BURST / REQUEST);
        let other = Guid::from_wire(8).unwrap();
        assert!(budget.left(start, other).is_ok(), "others are not");
        let later = start + Duration::from_millis(1);
        assert_eq!(
            budget.left(later, PORT),
            Ok((RATE / 1000 - REQUEST) as usize),
            "it is refilled at its rate"
        );
        let much_later = start + Duration::from_secs(60);
        assert_eq!(budget.left(much_later, PORT), Ok((BURST - REQUEST) as usize), "and never more than full");
    }

    #[test]
    fn a_port_recovers_when_half_of_its_bucket_is_refilled() {
        let mut budget = QueryBudget::default();
        let start = Duration::from_secs(100);
        assert_eq!(budget.recovers_at(start, PORT), start);
        budget.spend(start, PORT, BURST as usize);
        let recovered = budget.recovers_at(start, PORT);
        assert_eq!(recovered, start + Duration::from_secs(2));
        assert_eq!(budget.left(recovered, PORT), Ok((BURST / 2 - REQUEST) as usize));
    }

    #[test]
    fn a_clock_that_stands_still_refills_nothing() {
        let mut budget = QueryBudget::default();
        budget.spend(Duration::ZERO, PORT, BURST as usize);
        assert_eq!(budget.left(Duration::ZERO, PORT), Err(Status::BUSY));
        budget.spend(Duration::ZERO, PORT, usize::MAX >> 8);
        assert!(budget.left(Duration::from_secs(1), PORT).is_ok(), "debts are bounded");
    }
}
