use super::*;
use ib_wire::{Attribute, DirectedRoute};

fn window(window: usize, device_window: usize) -> MadWindow<u32> {
    MadWindow::new(MadLimits { window, device_window, timeout: Duration::from_secs(1), retries: 1 })
}

fn device(raw: u64) -> Guid {
    Guid::from_wire(raw).unwrap()
}

fn request() -> Mad {
    Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default())
}

#[test]
fn windows_bound_what_is_in_flight() {
    let mut window = window(3, 1);
    for index in 0..8 {
        window.request(device(1 + index % 2), request(), index as u32);
    }
    let sent = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).count();
    assert_eq!(sent, 2, "one towards each of two devices");
    window.request(device(3), request(), 8);
    window.request(device(4), request(), 9);
    let sent = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).count();
    assert_eq!(sent, 1, "three altogether");
}

#[test]
fn the_window_grows_with_responses_and_halves_with_losses() {
    let mut window = window(64, 64);
    (0..1000).for_each(|index| window.request(device(1), request(), index));
    let send = |window: &mut MadWindow<u32>| -> Vec<Datagram> {
        std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).collect()
    };
    let mut sizes = Vec::new();
    let mut sent = send(&mut window);
    for _ in 0..5 {
        sizes.push(sent.len());
        sent.iter().for_each(|datagram| assert!(window.answered(&datagram.mad).is_some()));
        sent = send(&mut window);
    }
    assert_eq!(sizes, [4, 8, 16, 32, 64], "doubled in every round trip, up to the limit");
    // All that are in flight are lost at once: that is one congestion.
    for datagram in &sent {
        assert!(window.lost(datagram.mad.transaction()).is_empty(), "it is sent again");
    }
    sent = send(&mut window);
    assert_eq!(sent.len(), 32);
    sent.iter().for_each(|datagram| assert!(window.answered(&datagram.mad).is_some()));
    assert_eq!(send(&mut window).len(), 33, "one more in every round trip");
}

#[test]
fn without_a_lease_reads_are_sent_and_sets_wait() {
    let mut window = window(8, 8);
    let mut set = request();
    set.set_method(Method::SET);
    for (index, mad) in [request(), set, request()].into_iter().enumerate() {
        window.request(device(1), mad, index as u32);
    }
    assert!(window.poll_transmit(Duration::ZERO, false).is_some());
    assert!(window.poll_transmit(Duration::ZERO, false).is_none(), "the Set waits, and what follows it");
    let methods = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true));
    assert_eq!(methods.map(|sent| sent.mad.method()).collect::<Vec<_>>(), [Method::SET, Method::GET]);
}

#[test]
fn a_response_frees_the_window_once() {
    let mut window = window(1, 1);
    window.request(device(1), request(), 7);
    window.request(device(1), request(), 8);
    let first = window.poll_transmit(Duration::ZERO, true).unwrap();
    assert!(window.poll_transmit(Duration::ZERO, true).is_none());
    assert_eq!(window.answered(&first.mad).map(|answer| answer.purpose), Some(7));
    assert!(window.answered(&first.mad).is_none(), "a duplicate");
    assert!(window.poll_transmit(Duration::ZERO, true).is_some());
}

#[test]
fn a_request_without_response_is_retried_and_given_up() {
    let mut window = window(4, 4);
    window.request(device(1), request(), 7);
    window.poll_transmit(Duration::ZERO, true).unwrap();
    assert!(window.handle_timeout(Duration::from_millis(999)).is_empty());
    assert!(window.handle_timeout(Duration::from_secs(1)).is_empty(), "sent again");
    let again = window.poll_transmit(Duration::from_secs(1), true).unwrap();
    assert_eq!(window.lost(again.mad.transaction()), [7], "given up");
    assert!(window.is_idle());
    assert_eq!(window.counts, MadCounts { gets: 2, retries: 1, ..MadCounts::default() });
}

/// Sends what may be sent; devices up to `dark` never answer. Returns how many requests were answered.
fn round_trip(window: &mut MadWindow<u32>, now: Duration, dark: u64, silent: &mut Vec<u32>) -> usize {
    let mut answered = 0;
    while let Some(sent) = window.poll_transmit(now, true) {
        let transaction = sent.mad.transaction().0 as u32;
        if window.in_flight[&transaction].device >= device(dark + 1) {
            answered += usize::from(window.answered(&sent.mad).is_some());
        }
    }
    silent.extend(window.handle_timeout(now + Duration::from_secs(1)));
    answered
}

#[test]
fn silent_devices_hold_up_nobody_else() {
    let limits = MadLimits { window: 64, device_window: 4, timeout: Duration::from_secs(1), retries: 5 };
    let mut window = MadWindow::new(limits);
    for index in 0..600 {
        // 60 devices do not answer, 40 do.
        window.request(device(1 + index % 100), request(), index as u32);
    }
    let (mut silent, mut answered) = (Vec::new(), 0);
    let mut trips = 0;
    while !window.is_idle() {
        answered += round_trip(&mut window, Duration::from_secs(trips), 60, &mut silent);
        trips += 1;
    }
    assert_eq!((answered, silent.len()), (240, 360));
    assert!(trips < 40, "{trips} timeouts, not 360 * 6 / 4");
    // They answer again: one request at a time at first.
    (0..8).for_each(|index| window.request(device(1), request(), index));
    assert_eq!(round_trip(&mut window, Duration::from_secs(trips), 0, &mut silent), 8);
}

#[test]
fn devices_in_doubt_leave_room_to_others() {
    let limits = MadLimits { window: 8, device_window: 4, timeout: Duration::from_secs(1), retries: 5 };
    let mut window = MadWindow::new(limits);
    (0..40).for_each(|index| window.request(device(1 + index), request(), index as u32));
    let mut silent = Vec::new();
    for trip in 0..20 {
        round_trip(&mut window, Duration::from_secs(trip), 40, &mut silent);
    }
    while window.poll_transmit(Duration::from_secs(20), true).is_some() {}
    assert_eq!(window.in_flight.len(), 7, "all that are left are in doubt");
    (50..60).for_each(|index| window.request(device(index), request(), index as u32));
    while window.poll_transmit(Duration::from_secs(20), true).is_some() {}
    assert_eq!(window.in_flight.len(), 8);
}

#[test]
fn transactions_start_anew_below_those_of_the_election() {
    let mut window = window(64, 64);
    window.sent = u64::from(TRANSACTIONS) * 3 - 5;
    (0..5).for_each(|index| window.request(device(1), request(), index));
    let sent: Vec<Datagram> = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).collect();
    let transactions: Vec<u32> = sent.iter().map(|it| it.mad.transaction().0 as u32).collect();
    assert_eq!(transactions, [TRANSACTIONS - 2, TRANSACTIONS - 1, 1, 2]);
    window.handle_timeout(Duration::from_secs(1));
    assert_eq!(window.devices[&device(1)].losses, 1, "one round trip");
    assert!(window.answered(&sent[0].mad).is_none(), "it is sent again with another transaction");
}

#[test]
fn silent_software_says_nothing_about_its_device() {
    let mut window = window(4, 4);
    for index in 0..6 {
        window.request_beyond(RetryPolicy::Once, device(1), request(), index);
    }
    window.request(device(1), request(), 7);
    let mut sent = Vec::new();
    while !window.is_idle() {
        while let Some(datagram) = window.poll_transmit(Duration::ZERO, true) {
            sent.push(datagram);
        }
        let datagram = sent.remove(0);
        match window.in_flight[&(datagram.mad.transaction().0 as u32)].request.purpose {
            7 => assert_eq!(window.answered(&datagram.mad).map(|it| it.purpose), Some(7)),
            purpose => assert_eq!(window.lost(datagram.mad.transaction()), [purpose]),
        }
        assert!(!window.devices[&device(1)].is_in_doubt());
    }
}

#[test]
fn what_was_sent_is_named_when_the_rest_is_dropped() {
    let mut window = window(2, 1);
    (1..=4).for_each(|index| window.request(device(index), request(), index as u32));
    let sent: Vec<Datagram> = std::iter::from_fn(|| window.poll_transmit(Duration::ZERO, true)).collect();
    assert_eq!(sent.len(), 2);
    assert!(window.lost(sent[0].mad.transaction()).is_empty());
    window.request(device(5), request(), 5);
    assert_eq!(window.drop_waiting(|purpose| *purpose != 5), [1]);
    assert_eq!(window.waiting(), 1, "the last one is kept");
    let kept = window.poll_transmit(Duration::ZERO, true).unwrap();
    assert_eq!(window.answered(&kept.mad).map(|it| it.purpose), Some(5));
    assert!(!window.is_idle(), "one is in flight");
    assert!(window.answered(&sent[1].mad).is_some());
    assert!(window.is_idle());
}

#[test]
fn inquiries_are_few_and_no_response_to_another_request_matches_them() {
    let limits = MadLimits { window: 64, device_window: 4, timeout: Duration::from_secs(1), retries: 1 };
    let (mut inquiries, mut window) = (MadWindow::for_inquiries(limits), MadWindow::new(limits));
    for index in 0..100 {
        inquiries.request_beyond(RetryPolicy::Limits, device(1 + index), request(), index);
    }
    window.request(device(1), request(), 1);
    let sent: Vec<Datagram> = std::iter::from_fn(|| inquiries.poll_transmit(Duration::ZERO, true)).collect();
    assert!(!sent.is_empty() && sent.len() <= INQUIRIES_MAX, "{} are in flight", sent.len());
    let other = window.poll_transmit(Duration::ZERO, true).unwrap();
    assert!(inquiries.answered(&other.mad).is_none() && window.answered(&sent[0].mad).is_none());
    assert!(inquiries.answered(&sent[0].mad).is_some() && window.answered(&other.mad).is_some());
}
