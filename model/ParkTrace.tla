----------------------------- MODULE ParkTrace ------------------------------
(* Park with the name of each step of the lock server, for traces that are   *)
(* replayed against the scripts (tests/model). A trace ends when Unfinished  *)
(* is violated.                                                              *)
EXTENDS Park

CONSTANT Length  \* how many steps of the server a trace has

VARIABLES
  act,    \* the last step: <<action, worker or poller, job, attempt, reply>>
  steps,  \* steps of the server so far
  since   \* job -> the step since which its message is due: scripts take the first

traceVars == <<vars, act, steps, since>>

Does(action, who, job, attempt, reply) ==
  /\ act' = <<action, who, job, attempt, reply>>
  /\ steps' = steps + 1
  /\ since' = [j \in Jobs |-> IF due'[j] = "now" /\ due[j] # "now" THEN steps + 1 ELSE since[j]]

TraceInit ==
  /\ Init
  /\ act = <<"Init", "", "", 0, "">>
  /\ steps = 0
  /\ since = [j \in Jobs |-> 0]

\* The reply of an acquire. "taken_over": from a run, and not from the slot of a woken message.
\* "parked_later": the stored message of a later attempt stays. "parked_again": one that is due is parked
\* again, and "woken_later" is both.
Reply(w) ==
  LET j == worker[w].job
      becomes == worker'[w].st
  IN IF becomes = "running" THEN IF holder.kind = "run" THEN "taken_over" ELSE "granted"
     ELSE IF becomes = "putting_back" THEN "copy"
     ELSE IF ended[j] >= worker[w].attempt THEN "ended"
     ELSE IF parked[j] > worker[w].attempt THEN IF due[j] = "no" THEN "parked_later" ELSE "woken_later"
     ELSE IF due[j] # "no" THEN "parked_again"
     ELSE "parked"

IsFirstDue(j) == \A k \in Jobs : due[k] = "now" => since[j] <= since[k]

ServerStep ==
  \/ \E w \in Workers :
       \/ AcquireOrPark(w) /\ Does("acquire", w, worker[w].job, worker[w].attempt, Reply(w))
       \/ Release(w) /\ Does("release", w, worker[w].job, worker[w].attempt, "")
  \/ \E p \in Pollers :
       \/ \E j \in Jobs :
            PollDue(p, j) /\ IsFirstDue(j) /\ Does("poll_due", p, j, parked[j], "")
       \/ /\ ConfirmWake(p)
          /\ Does("confirm_wake", p, poller[p].job, poller[p].attempt,
                  IF parked' = parked THEN "stale" ELSE "confirmed")
  \/ \E j \in Jobs : (TurnEnds(j) \/ TurnEndsEarly(j)) /\ Does("turn_ends", "", j, 0, "")
  \/ LapseOfRun /\ Does("lapse_of_run", holder.worker, holder.job, holder.attempt, "")
  \/ LapseOfKept /\ Does("lapse_of_kept", "", holder.job, 0, "")

OtherStep ==
  /\ \/ \E w \in Workers :
          \/ \E i \in 1..Entries : Receive(w, i)
          \/ Ack(w) \/ PutBack(w) \/ Finish(w) \/ Retry(w) \/ Die(w)
     \/ \E p \in Pollers : PublishWoken(p) \/ PollerDies(p)
     \/ \E i \in 1..Entries : Redeliver(i)
  /\ act' = <<"Other", "", "", 0, "">> /\ UNCHANGED <<steps, since>>

TraceNext == ServerStep \/ OtherStep
TraceSpec == TraceInit /\ [][TraceNext]_traceVars

Unfinished == steps < Length

-----------------------------------------------------------------------------
(* Goals: each is violated by the shortest trace that shows something rare.  *)

NoParkEnded == act[5] # "ended"
NoParkCopy == act[5] # "copy"
NoParkTakeover == act[5] # "taken_over"
NoParkedLater == act[5] # "parked_later"
NoParkedAgain == act[5] # "parked_again"
NoWokenLater == act[5] # "woken_later"
NoStaleConfirm == act[5] # "stale"
NoLapseOfKept == act[1] # "lapse_of_kept"
NoWakeAfterDeath == ~(act[1] = "poll_due" /\ left.pollerDeaths < PollerDeaths)
NoWakeAfterLapse == ~(act[1] = "lapse_of_run" /\ holder.kind = "kept")
NoLateRelease == ~(act[1] = "release" /\ ended[act[3]] > act[4])
=============================================================================
