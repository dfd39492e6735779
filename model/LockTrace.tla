----------------------------- MODULE LockTrace ------------------------------
(* Lock with the name of each step, for traces that are replayed against the *)
(* scripts (tests/model). A trace ends when Unfinished is violated.          *)
EXTENDS Lock

CONSTANT Length  \* how many steps of the server a trace has

VARIABLES
  act,   \* the last step: <<action, token, reply>>
  steps  \* steps of the server so far, without ticks

traceVars == <<vars, act, steps>>

OnServer == steps' = steps + 1

TraceInit == Init /\ act = <<"Init", "", "">> /\ steps = 0

TraceNext ==
  \/ \E t \in Tokens :
       \/ Client(t) /\ act' = <<"Client", t, "">> /\ UNCHANGED steps
       \/ Execute(t) /\ act' = <<Operation(t), t, call'[t].st>> /\ OnServer
       \/ Force(t) /\ act' = <<"force", t, "">> /\ OnServer
  \/ \E request \in late :
       ExecuteLate(request[1], request[2]) /\ act' = <<request[1], request[2], "">> /\ OnServer
  \/ Replicate /\ act' = <<"replicate", "", "">> /\ UNCHANGED steps
  \/ Failover /\ act' = <<"failover", "", "">> /\ OnServer
  \/ /\ act[1] = "tick" => steps % 2 = 0  \* else most steps of a random walk would be ticks
     /\ Tick /\ act' = <<"tick", "", "">> /\ UNCHANGED steps

TraceSpec == TraceInit /\ [][TraceNext]_traceVars

Unfinished == steps < Length

-----------------------------------------------------------------------------
(* Goals: each is violated by the shortest trace that shows something rare.  *)

NoCopy == act[3] # "copy"
NoEnded == act[3] # "ended"
NoCopyOfEarlier == ~(act[2] = "retry" /\ act[3] = "copy")
NoTakeover == ~(act[1] = "acquire" /\ act[2] = "retry" /\ act[3] = "granted" /\ pc["one"] = "retrying")
NoClaim == ~(act[1] = "acquire" /\ act[3] = "granted" /\ pc[act[2]] = "waiting")
NoLateGrant ==
  ~(act[1] = "acquire" /\ act[3] = "" /\ pc[act[2]] = "done" /\ srv.expiry[act[2]] = Ttl)
NoRevival == ~(act[1] = "renew" /\ act[3] = "renewed" /\ trust[act[2]] = 0)
NoSkippedWaiter ==
  ~\E t, u \in Tokens : /\ pc[t] = "dead" /\ t \notin Range(srv.queue) \cup Range(srv.holders)
                        /\ pc[u] = "waiting" /\ u \in Range(srv.holders)
=============================================================================
