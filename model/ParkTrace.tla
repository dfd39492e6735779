----------------------------- MODULE ParkTrace ------------------------------
(* Park with the name of each step of the lock server, for traces that can be *)
(* replayed once the scripts exist. A trace ends when Unfinished is violated. *)
EXTENDS Park

CONSTANT Length  \* how many steps of the server a trace has

VARIABLES
  act,   \* the last step: <<action, job, attempt, what became of the caller>>
  steps  \* steps of the server so far

traceVars == <<vars, act, steps>>

Does(action, job, attempt, became) ==
  act' = <<action, job, attempt, became>> /\ steps' = steps + 1

TraceInit == Init /\ act = <<"Init", "", 0, "">> /\ steps = 0

ServerStep ==
  \/ \E w \in Workers :
       \/ AcquireOrPark(w) /\ Does("acquire", worker[w].job, worker[w].attempt, worker'[w].st)
       \/ Release(w) /\ Does("release", worker[w].job, worker[w].attempt, "")
  \/ \E p \in Pollers :
       \/ \E j \in Jobs : PollDue(p, j) /\ Does("poll_due", j, parked[j], "")
       \/ ConfirmWake(p) /\ Does("confirm_wake", poller[p].job, poller[p].attempt, "")
  \/ \E j \in Jobs : (TurnEnds(j) \/ TurnEndsEarly(j)) /\ Does("turn_ends", j, 0, "")
  \/ (LapseOfRun \/ LapseOfKept) /\ Does("lapse", holder.job, holder.attempt, holder.kind)

OtherStep ==
  /\ \/ \E w \in Workers :
          \/ \E i \in 1..Entries : Receive(w, i)
          \/ Ack(w) \/ PutBack(w) \/ Finish(w) \/ Retry(w) \/ Die(w)
     \/ \E p \in Pollers : PublishWoken(p) \/ PollerDies(p)
     \/ \E i \in 1..Entries : Redeliver(i)
  /\ act' = <<"Other", "", 0, "">> /\ UNCHANGED steps

TraceNext == ServerStep \/ OtherStep
TraceSpec == TraceInit /\ [][TraceNext]_traceVars

Unfinished == steps < Length
=============================================================================
